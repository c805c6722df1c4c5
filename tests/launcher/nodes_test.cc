// Jobs of several hosts as users meet them. The other host is this machine: `ssh` is a script that
// runs the command here, so everything but ssh itself is what runs between machines.

#include "launcher/control/control_connection.h"
#include "launcher/environment.h"
#include "launcher/hosts/cluster.h"
#include "tests/common.h"
#include "tests/launcher/launcher_process.h"
#include "tests/scratch.h"

namespace zerorun::nodes_test {
namespace {

using testing::LauncherProcess;
using testing::lines_of;
using testing::wait_until_gone;
using testing::zerorun_command;

using Variables = std::map<std::string, std::string>;

// Two hosts with two slots each, the second of which is reached through a false ssh.
class TwoHosts : public ::testing::Test {
 protected:
  TwoHosts() {
    // The last word is the command, the one before it the host. Not the shell itself becomes the
    // launcher, so that each can be killed alone.
    // The shell gives /dev/null to what runs in the background, hence descriptor 3.
    scratch_.write("ssh",
                   fmt::format("#!/bin/sh\n"
                               "for word; do host=$command; command=$word; done\n"
                               "echo $$ > {0}/ssh.pid\n"
                               "test -e {0}/unreachable && {{ echo 'no route' >&2; exit 255; }}\n"
                               "exec 3<&0\n"
                               "ON_HOST=$host sh -c \"$command\" <&3 3<&- &\n"
                               "exec 3<&-; wait $!\n",
                               scratch_.path().string()),
                   /*executable=*/true);
    scratch_.write("hosts", "localhost slots=2\n127.0.0.2 slots=2\n");
  }

  // A job on both hosts that runs a shell script.
  LauncherProcess start(const std::string& script, std::vector<std::string> options = {}) const {
    std::vector<std::string> arguments = {"--accelerator", "cpu", "--hostfile",
                                          scratch_.path("hosts")};
    arguments.insert(arguments.end(), options.begin(), options.end());
    arguments.insert(arguments.end(), {"sh", "-c", script});
    return LauncherProcess(zerorun_command(arguments), variables());
  }
  // The part of one host, started by hand.
  static LauncherProcess start_by_hand(int node_rank, uint16_t port, const std::string& script,
                                       std::vector<std::string> options = {}) {
    std::vector<std::string> arguments = {
        "--accelerator", "cpu",       "--nproc_per_node", "2",
        "--nnodes",      "2",         "--node_rank",      std::to_string(node_rank),
        "--master_addr", "127.0.0.1", "--master_port",    std::to_string(port)};
    arguments.insert(arguments.end(), options.begin(), options.end());
    arguments.insert(arguments.end(), {"sh", "-c", script});
    return LauncherProcess(zerorun_command(arguments), {{"ZERORUN_JOB_SECRET", "s"}});
  }

  Variables variables() const {
    const std::string old = inherited_environment()["PATH"];
    return {{"PATH", scratch_.path().string() + ":" + old}};
  }
  pid_t ssh_pid() const { return std::stoi(scratch_.read("ssh.pid")); }

  testing::Scratch scratch_;
};

uint16_t free_port() { return reserve_port("127.0.0.1", 0).port; }

const std::string kPlace = "echo $RANK $LOCAL_RANK $WORLD_SIZE $NODE_RANK $GROUP_WORLD_SIZE";
const std::multiset<std::string> kPlaces = {"0 0 4 0 2", "1 1 4 0 2", "2 0 4 1 2", "3 1 4 1 2"};

TEST_F(TwoHosts, EveryRankKnowsItsPlace) {
  LauncherProcess job = start(kPlace);
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(lines_of(job.output()), kPlaces);
  EXPECT_EQ(job.errors(), "");
  EXPECT_THAT(job.members(), IsEmpty());
}

TEST_F(TwoHosts, RanksMeetAtOnePlaceWithOneSecret) {
  LauncherProcess job = start("echo $MASTER_ADDR $MASTER_PORT $ZERORUN_JOB_SECRET $ON_HOST");
  EXPECT_EQ(job.wait(), 0);
  std::set<std::string> places;
  size_t remote = 0;
  for (std::string line : lines_of(job.output())) {
    if (line.ends_with(" 127.0.0.2")) {
      ++remote;
      line.resize(line.rfind(' '));
    }
    places.insert(line.substr(0, line.find_last_not_of(' ') + 1));
  }
  EXPECT_EQ(places.size(), 1U);
  EXPECT_EQ(remote, 2U);
}

TEST_F(TwoHosts, AFailureElsewhereEndsAllAndIsReportedLast) {
  LauncherProcess job = start("test $RANK = 3 && { echo broken >&2; exit 7; }; exec sleep 1000");
  EXPECT_EQ(job.wait(), 7);
  EXPECT_THAT(job.errors(), HasSubstr("broken\n"));
  EXPECT_THAT(job.errors(), HasSubstr("[zerorun] error: rank 3 of 4"));
  EXPECT_THAT(job.errors(), EndsWith("failed with exit code 7\n"));
  EXPECT_THAT(job.members(), IsEmpty());
}

TEST_F(TwoHosts, ASignalThatKilledARankIsTheCauseOfItsPeersErrors) {
  LauncherProcess job = start("test $RANK = 2 && kill -9 $$; exec sleep 1000");
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_THAT(job.errors(), HasSubstr("rank 2 of 4"));
  EXPECT_THAT(job.members(), IsEmpty());
}

TEST_F(TwoHosts, AHostThatSshDoesNotReachIsNamedAtOnce) {
  scratch_.write("unreachable", "");
  LauncherProcess job = start("exec sleep 1000");
  EXPECT_EQ(job.wait(), 1);
  EXPECT_THAT(job.errors(),
              HasSubstr("no launcher on host 127.0.0.2 (node 1): ssh ended with 255"));
  EXPECT_THAT(job.errors(), HasSubstr("no route"));
  EXPECT_THAT(job.members(), IsEmpty());
}

TEST_F(TwoHosts, WithoutSshTheErrorSaysSo) {
  std::filesystem::remove(scratch_.path("ssh"));
  std::vector<std::string> arguments = {"--accelerator", "cpu", "--hostfile",
                                        scratch_.path("hosts"), "/bin/true"};
  LauncherProcess job(zerorun_command(arguments), {{"PATH", scratch_.path().string()}});
  EXPECT_EQ(job.wait(), 2);
  EXPECT_THAT(job.errors(), HasSubstr("ssh is not in PATH"));
}

TEST_F(TwoHosts, AProgramThatIsMissingElsewhereIsAnErrorThatNamesTheHost) {
  LauncherProcess job(zerorun_command({"--accelerator", "cpu", "--hostfile", scratch_.path("hosts"),
                                       scratch_.path("absent")}),
                      variables());
  EXPECT_EQ(job.wait(), 2);
  EXPECT_THAT(job.errors(), HasSubstr("absent"));
  EXPECT_THAT(job.members(), IsEmpty());
}

// Ranks that say that they are there.
const std::string kWaiting = "echo ready; exec sleep 1000";

TEST_F(TwoHosts, Kill9OfSshEndsTheJobOnBothHosts) {
  LauncherProcess job = start(kWaiting);
  job.await_ready(4);
  kill(ssh_pid(), SIGKILL);
  EXPECT_EQ(job.wait(), 1);
  EXPECT_THAT(job.errors(), HasSubstr("host 127.0.0.2 (node 1) was lost"));
  EXPECT_TRUE(wait_until_gone(job.members()));
}

TEST_F(TwoHosts, Kill9OfTheLauncherLeavesNothing) {
  LauncherProcess job = start(kWaiting);
  job.await_ready(4);
  const auto members = job.members();
  kill(job.pid(), SIGKILL);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_TRUE(wait_until_gone(members));
}

TEST_F(TwoHosts, Kill9OfTheCoordinatorLeavesNothing) {
  LauncherProcess job = start(kWaiting);
  job.await_ready(4);
  const auto members = job.members();
  kill(testing::parent_of(ssh_pid()), SIGKILL);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_TRUE(wait_until_gone(members));
}

TEST_F(TwoHosts, AStoppedLauncherIsALostHost) {
  LauncherProcess job = start("echo $PPID $ON_HOST; exec sleep 1000");
  pid_t supervisor = 0;
  for (int i = 0; i < 4; ++i) {
    std::istringstream line(job.read_line());
    pid_t parent = 0;
    std::string host;
    line >> parent >> host;
    if (!host.empty()) supervisor = parent;
  }
  kill(supervisor, SIGSTOP);
  EXPECT_EQ(job.wait(), 1);
  EXPECT_THAT(job.errors(), HasSubstr("host 127.0.0.2 (node 1) was lost: nothing was heard"));
  EXPECT_TRUE(wait_until_gone(job.members()));
}

TEST_F(TwoHosts, ASignalLetsTheRanksOfAllHostsSave) {
  LauncherProcess job =
      start("trap 'echo saved; exit 0' INT TERM; echo ready; while :; do sleep 1000 & wait; done");
  job.await_ready(4);
  kill(job.pid(), SIGINT);
  EXPECT_EQ(job.wait(), 128 + SIGINT);
  EXPECT_EQ(job.output(), "saved\nsaved\nsaved\nsaved\n");
  EXPECT_THAT(job.errors(), Not(HasSubstr("error")));
}

TEST_F(TwoHosts, AFailedJobStartsAnew) {
  LauncherProcess job = start(
      "test $TORCHELASTIC_RESTART_COUNT = 0 && { test $RANK = 3 && exit 5; exec sleep 1000; }; "
      "echo $RANK $WORLD_SIZE $ZERORUN_RESTART_REASON",
      {"--max_restarts", "2"});
  EXPECT_EQ(job.wait(), 0);
  const auto lines = lines_of(job.output());
  EXPECT_EQ(lines.size(), 4U);
  for (const std::string& line : lines) EXPECT_THAT(line, HasSubstr("failed with exit code 5"));
  EXPECT_THAT(job.errors(), HasSubstr("restart 1 of 2 on 2 hosts: rank 3 on "));
}

const std::string kEndsAfterARestart =
    "test $TORCHELASTIC_RESTART_COUNT = 1 && { echo $RANK of $WORLD_SIZE; exit 0; }; " + kWaiting;

TEST_F(TwoHosts, ALostHostLeavesASmallerJob) {
  LauncherProcess job = start(kEndsAfterARestart, {"--nnodes", "1:2", "--max_restarts", "1"});
  job.await_ready(4);
  scratch_.write("unreachable", "");
  kill(ssh_pid(), SIGKILL);
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(lines_of(job.output()), (std::multiset<std::string>{"0 of 2", "1 of 2"}));
  EXPECT_THAT(job.errors(), HasSubstr("restart 1 of 1 on 1 hosts"));
  EXPECT_THAT(job.errors(), HasSubstr("no route; going on without it"));
}

TEST_F(TwoHosts, ALostHostThatIsBackJoinsTheRestartedJob) {
  LauncherProcess job = start(kEndsAfterARestart, {"--nnodes", "1:2", "--max_restarts", "1"});
  job.await_ready(4);
  kill(ssh_pid(), SIGKILL);
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(lines_of(job.output()),
            (std::multiset<std::string>{"0 of 4", "1 of 4", "2 of 4", "3 of 4"}));
  EXPECT_THAT(job.errors(), HasSubstr("for lost hosts to join again: 127.0.0.2 (node 1)"));
}

TEST_F(TwoHosts, AJobOfAFixedNumberOfHostsWaitsForALostOne) {
  LauncherProcess job = start(kEndsAfterARestart, {"--max_restarts", "1"});
  job.await_ready(4);
  scratch_.write("unreachable", "");
  kill(ssh_pid(), SIGKILL);
  while (!job.read_error_line().ends_with("no route; it is called again every 10 s")) {
  }
  std::filesystem::remove(scratch_.path("unreachable"));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(lines_of(job.output()),
            (std::multiset<std::string>{"0 of 4", "1 of 4", "2 of 4", "3 of 4"}));
}

TEST_F(TwoHosts, ALostHostThatDoesNotComeBackIsNamedWithItsLoss) {
  LauncherProcess job =
      start(kEndsAfterARestart, {"--max_restarts", "1", "--rdzv_conf", "join_timeout=1"});
  job.await_ready(4);
  scratch_.write("unreachable", "");
  kill(ssh_pid(), SIGKILL);
  EXPECT_EQ(job.wait(), 1);
  EXPECT_THAT(job.errors(), HasSubstr("not all hosts have joined within 1 s; there: localhost"));
  EXPECT_THAT(job.errors(), HasSubstr("missing: 127.0.0.2 (node 1)"));
  EXPECT_THAT(job.errors(),
              HasSubstr("the job was to start anew: host 127.0.0.2 (node 1) was lost"));
  EXPECT_TRUE(wait_until_gone(job.members()));
}

TEST_F(TwoHosts, ASlowReaderLosesNothing) {
  LauncherProcess job = start("head -c 700000 /dev/zero | tr '\\0' x | fold -w 99; echo");
  // Longer than hosts may be silent.
  std::this_thread::sleep_for(2 * ControlConnection::kMaxSilence);
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.errors(), "");
  EXPECT_EQ(std::count(job.output().begin(), job.output().end(), 'x'), 4 * 700000);
}

TEST_F(TwoHosts, WithoutStandardStreamsTheJobEndsAsEver) {
  std::vector<std::string> command = {"sh", "-c", "exec \"$@\" <&- >&- 2>&-", "sh"};
  const std::vector<std::string> launcher =
      zerorun_command({"--accelerator", "cpu", "--hostfile", scratch_.path("hosts"), "sh", "-c",
                       "echo x; echo y >&2"});
  command.insert(command.end(), launcher.begin(), launcher.end());
  LauncherProcess job(command, variables());
  EXPECT_EQ(job.wait(), 0);
  EXPECT_THAT(job.members(), IsEmpty());
}

TEST_F(TwoHosts, StartedByHandTheyMeet) {
  const uint16_t port = free_port();
  LauncherProcess second = start_by_hand(1, port, kPlace);
  LauncherProcess first = start_by_hand(0, port, kPlace);
  EXPECT_EQ(first.wait(), 0);
  EXPECT_EQ(second.wait(), 0);
  std::multiset<std::string> lines = lines_of(first.output());
  lines.merge(lines_of(second.output()));
  EXPECT_EQ(lines, kPlaces);
}

TEST_F(TwoHosts, StartedByHandCtrlCOnAnyHostLetsAllRanksSave) {
  struct Case {
    std::set<size_t> asked;        // hosts
    std::optional<size_t> done{};  // the host whose ranks have ended before
  };
  for (const auto& [asked, done] :
       {Case{{0}}, Case{{1}}, Case{{1, 0}}, Case{{0}, 0}, Case{{1}, 1}}) {
    const std::string script = "trap 'sleep 2; echo saved; exit 0' INT; test $NODE_RANK = " +
                               (done ? std::to_string(*done) : "none") +
                               " && exit 0; echo ready; while :; do sleep 0.1; done";
    const uint16_t port = free_port();
    LauncherProcess second = start_by_hand(1, port, script);
    LauncherProcess first = start_by_hand(0, port, script);
    const std::array<LauncherProcess*, 2> hosts = {&first, &second};
    for (const size_t host : {0, 1, 0, 1}) {
      if (host != done) {
        EXPECT_EQ(hosts[host]->read_line(), "ready");
      }
    }
    if (done) std::this_thread::sleep_for(std::chrono::milliseconds(500));  // for its ranks
    for (const size_t host : asked) kill(hosts[host]->pid(), SIGINT);
    for (const size_t host : {0, 1}) {
      EXPECT_EQ(hosts[host]->wait(), 128 + SIGINT);
      EXPECT_EQ(hosts[host]->output(), host == done ? "" : "saved\nsaved\n");
    }
  }
}

TEST_F(TwoHosts, StartedByHandTheyEndTogetherWithOneExitCode) {
  const uint16_t port = free_port();
  const std::string script = "test $RANK = 2 && exit 9; exec sleep 1000";
  LauncherProcess second = start_by_hand(1, port, script);
  LauncherProcess first = start_by_hand(0, port, script);
  EXPECT_EQ(first.wait(), 9);
  EXPECT_EQ(second.wait(), 9);
  EXPECT_THAT(first.errors(), HasSubstr("rank 2 of 4"));
}

// No ssh ends it.
TEST_F(TwoHosts, StartedByHandTheLossOfTheFirstEndsTheOther) {
  const uint16_t port = free_port();
  LauncherProcess first = start_by_hand(0, port, kWaiting);
  LauncherProcess second = start_by_hand(1, port, kWaiting);
  first.await_ready(2);
  second.await_ready(2);
  kill(first.pid(), SIGKILL);
  EXPECT_EQ(second.wait(), 1);
  EXPECT_THAT(second.errors(), HasSubstr("lost the connection to the launcher at 127.0.0.1"));
  EXPECT_TRUE(wait_until_gone(second.members()));
}

TEST_F(TwoHosts, AHostThatDoesNotComeIsNamed) {
  LauncherProcess job =
      start_by_hand(0, free_port(), "exec sleep 1000", {"--rdzv_conf", "join_timeout=1"});
  EXPECT_EQ(job.wait(), 1);
  EXPECT_THAT(job.errors(), HasSubstr("not all hosts have joined within 1 s"));
  EXPECT_THAT(job.errors(), HasSubstr("missing: (node 1)"));
}

TEST_F(TwoHosts, DifferentProgramsAreAnError) {
  const uint16_t port = free_port();
  LauncherProcess first = start_by_hand(0, port, "exec sleep 1000");
  LauncherProcess second = start_by_hand(1, port, "exec sleep 2000");
  EXPECT_EQ(first.wait(), 2);
  EXPECT_THAT(first.errors(), HasSubstr("the hosts run different commands"));
  EXPECT_THAT(first.errors(), HasSubstr("sleep 1000"));
  EXPECT_THAT(first.errors(), HasSubstr("sleep 2000"));
  EXPECT_EQ(second.wait(), 2);
}

TEST_F(TwoHosts, AnUnauthenticatedClientIsNotLetIn) {
  const uint16_t port = free_port();
  LauncherProcess first =
      start_by_hand(0, port, "exec sleep 1000", {"--rdzv_conf", "join_timeout=2"});
  const FileDescriptor unknown =
      connect_to("127.0.0.1", port, std::chrono::steady_clock::now() + std::chrono::seconds(30));
  send_frame(unknown, ControlMessage("join").add("program", "x").add("token", "wrong").encode(),
             std::chrono::steady_clock::now() + std::chrono::seconds(30));
  EXPECT_EQ(first.wait(), 1);
  EXPECT_THAT(first.errors(), HasSubstr("missing: (node 1)"));
}

}  // namespace
}  // namespace zerorun::nodes_test
