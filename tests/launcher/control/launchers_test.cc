// What the launchers of a job's hosts say to each other, where the test is one side.
#include <sys/resource.h>

#include "launcher/control/coordinator.h"
#include "launcher/ranks/supervisor.h"
#include "tests/launcher/launcher_peer.h"
#include "tests/launcher/launcher_process.h"

namespace zerorun::testing::launchers_test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kDeadline = 60s;  // only a hang reaches it

// How the ranks of a host end whose launcher gets `message` together with the order to begin.
ControlMessage end_when_told(const ControlMessage& message) {
  Listener listener = reserve_port("127.0.0.1", 0);
  listen_on(listener);
  LauncherProcess job(by_hand_command(1, 2, 1, listener.port, {"sh", "-c", "exec sleep 1000"}),
                      {{"ZERORUN_JOB_SECRET", "s"}});
  Peer launcher = accept_ready(listener);
  Cluster cluster;
  cluster.start = RemoteStart::by_hand;
  cluster.hosts = {{.host = "a", .slots = {0}}, {.host = "b", .slots = {0}}};
  const Meeting meeting = {.master_addr = "127.0.0.1", .master_port = 1, .secret = "s"};
  launcher.send_at_once(encode_begin(cluster, meeting, 1), message);
  ControlMessage end = launcher.await("ended");
  launcher.send(ControlMessage("finish").add("code", 9).add("report", ""));
  EXPECT_EQ(job.wait(), 9);
  return end;
}

// One that has at most one client that is not yet let in, and lets in all that say anything.
struct FrameServerTest : ::testing::Test {
  FileDescriptor connect() const {
    return connect_to("127.0.0.1", port_, Clock::now() + kDeadline);
  }
  FileDescriptor connect_and_greet() const {
    FileDescriptor client = connect();
    send_frame(client, "it", Clock::now() + kDeadline);
    return client;
  }
  size_t service() {
    const auto accept = [this](FrameConnection&, const std::string&) {
      ++judged_;
      return FrameServer::Admission::admit;
    };
    return server_.service(accept).size();
  }

  Listener listener_ = reserve_port("127.0.0.1", 0);
  const uint16_t port_ = listener_.port;
  FrameServer server_{std::move(listener_), {.clients = 1, .bytes = 100}};
  int judged_ = 0;
};

// Its owner polls, and the listening socket goes on to be readable.
TEST_F(FrameServerTest, WaitsForAFreeDescriptor) {
  const FileDescriptor client = connect_and_greet();
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none = {0, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  const Clock::time_point begin = Clock::now();
  for (int turn = 0; turn < 10; ++turn) EXPECT_EQ(service(), 0U);
  EXPECT_GE(Clock::now() - begin, 100ms);
  setrlimit(RLIMIT_NOFILE, &before);
  while (service() == 0) ASSERT_LT(Clock::now() - begin, kDeadline);
}

// The oldest is dropped for too many that stay, not for one whose greeting is there.
TEST_F(FrameServerTest, AnAdmittedClientTakesNoOthersPlace) {
  const FileDescriptor oldest = connect();
  while (!server_.has_unauthenticated()) service();
  const FileDescriptor second = connect_and_greet();
  EXPECT_EQ(service(), 1U);
  EXPECT_TRUE(server_.has_unauthenticated());
  connect_and_greet();  // one that has gone is not judged
  EXPECT_EQ(service(), 0U);
  EXPECT_TRUE(server_.has_unauthenticated());
  EXPECT_EQ(judged_, 1);
}

TEST(NodeLauncher, ASignalOrAnEndThatComesWithTheOrderToBeginReachesTheRanks) {
  const auto cause_of = [](const ControlMessage& end) {
    return static_cast<RunEnd::Cause>(end.number("cause", 0, 9));
  };
  const ControlMessage end = end_when_told(ControlMessage("signal").add("signal", SIGINT));
  EXPECT_EQ(cause_of(end), RunEnd::Cause::request);
  EXPECT_EQ(end.number("code", 0, 255), 128 + SIGINT);
  EXPECT_EQ(cause_of(end_when_told(ControlMessage("end"))), RunEnd::Cause::elsewhere);
}

// A job on two other hosts, whose launchers are the test: its `ssh` prints their token.
struct CoordinatorTest : ::testing::Test {
  CoordinatorTest() {
    scratch_.write("ssh",
                   "#!/bin/sh\n"
                   "for word; do :; done\n"
                   "echo 'zerorun-node-token t'\n"
                   "echo \"$word\" | sed 's/.*--node_launcher //' >&2\n"
                   "exec cat > /dev/null\n",
                   /*executable=*/true);
    const std::string hosts =
        scratch_.write("hosts", "198.51.100.1 slots=1\n198.51.100.2 slots=1\n");
    job_.emplace(zerorun_command({"--accelerator", "cpu", "--hostfile", hosts, "true"}),
                 path_from(scratch_));
    const std::string line = job_->read_error_line();  // "HOST PORT ..."
    port_ = static_cast<uint16_t>(std::stoi(line.substr(line.find(' ') + 1)));
  }

  // The launcher of one host, ready to begin.
  Peer join(int node) const {
    Peer peer(connect_to("127.0.0.1", port_, Clock::now() + kDeadline));
    peer.send(join_message("t", "host").add("command", node).add("node_rank", -1));
    peer.await("job");
    peer.send(ControlMessage("ready").add("slots", "0"));
    return peer;
  }

  Scratch scratch_;
  std::optional<LauncherProcess> job_;
  uint16_t port_ = 0;
};

// Only a job that is started by hand lets launchers in that it has not started itself.
TEST_F(CoordinatorTest, WhoClaimsToBeStartedByHandNeitherJoinsNorEndsTheJob) {
  std::vector<Peer> strangers;
  for (const std::string& build : {std::string("another"), std::string(build_id().data())}) {
    strangers.emplace_back(connect_to("127.0.0.1", port_, Clock::now() + kDeadline));
    strangers.back().send(join_message("", "stranger", build)
                              .add("program", "true")
                              .add("command", -1)
                              .add("node_rank", 0));
  }
  Peer first = join(0);
  Peer second = join(1);
  first.await("begin");
}

TEST_F(CoordinatorTest, AfterCtrlCNoFurtherHostBegins) {
  Peer first = join(0);
  Peer second = join(1);
  first.await("begin");
  kill(job_->pid(), SIGINT);
  first.await("signal");
  first.send(ControlMessage("meeting").add("master_addr", "198.51.100.1").add("master_port", 1));
  first.send(ControlMessage("started"));
  first.send(ControlMessage("ended")
                 .add("cause", static_cast<int>(RunEnd::Cause::request))
                 .add("code", 128 + SIGINT)
                 .add("by_signal", 0)
                 .add("report", "")
                 .add("summary", ""));
  EXPECT_TRUE(second.next()->is("signal"));
  EXPECT_TRUE(second.next()->is("finish"));
  first.await("finish");
  EXPECT_THAT(job_->end(),
              ended(128 + SIGINT, HasAll("ending the ranks of 2 hosts", Not(HasSubstr("error")))));
}

// A message that its state does not allow loses the host, and with it the job.
TEST_F(CoordinatorTest, AMessageOutOfTurnLosesTheHost) {
  Peer first = join(0);
  first.send(ControlMessage("ended").add("cause", 0).add("code", 0));
  EXPECT_THAT(job_->end(), ended(1, HasSubstr("its launcher sent 'ended' out of turn")));
}

TEST(ControlMessage, NumbersAreBounded) {
  ControlMessage message("m");
  message.add("n", 11).add("word", "x").add("tail", "1x");
  EXPECT_EQ(message.number("n", 0, 11), 11);
  for (const char* name : {"n", "word", "tail", "absent"}) {
    EXPECT_THROW(message.number(name, 0, 10), CommError) << name;
  }
}

TEST(MeetingMessage, SlotsAreNumbersAndBounded) {
  EXPECT_THAT(decode_slots(""), IsEmpty());
  EXPECT_THAT(decode_slots("3,0"), ElementsAre(3, 0));
  for (const char* bad : {"x", "1,,2", "-1", "1 2", ","}) {
    EXPECT_THROW(decode_slots(bad), CommError) << bad;
  }
  std::string many = "0";
  for (int i = 0; i < 2000; ++i) many += ",0";
  EXPECT_THROW(decode_slots(many), CommError);
}

// Its number is free in no other place, but nobody has it either.
TEST(NodeTable, AHostThatIsGoneIsNoSecondLauncher) {
  for (const Node::State away : {Node::State::gone, Node::State::lost}) {
    std::vector<Node> nodes(2);
    nodes[0] = {.place = {.host = "a"}, .state = Node::State::running};
    nodes[1] = {.place = {.host = "b"}, .state = away};
    ControlMessage join("join");
    join.add("host", "b").add("program", "true").add("node_rank", 1);
    EXPECT_THAT(why_no_place(join, nodes),
                HasAll("no place for another launcher on b: it goes on without node 1",
                       "a (node 0), b (node 1)", Not(HasSubstr("two launchers"))));
  }
}

}  // namespace
}  // namespace zerorun::testing::launchers_test
