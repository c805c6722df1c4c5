// Jobs of several hosts as users meet them. The other host is this machine: `ssh` is a script that
// runs the command here, so everything but ssh itself is what runs between machines.

#include "launcher/control/control_connection.h"
#include "launcher/hosts/cluster.h"
#include "tests/launcher/launcher_process.h"

namespace zerorun::testing::nodes_test {
namespace {

// Two hosts with two slots each, the second of which is reached through a false ssh.
struct TwoHosts : ::testing::Test {
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

  // The command for both hosts, then options and a program.
  std::vector<std::string> on_both(std::vector<std::string> words) const {
    words.insert(words.begin(), {"--accelerator", "cpu", "--hostfile", scratch_.path("hosts")});
    return zerorun_command(words);
  }
  // A job on both hosts that runs a shell script.
  LauncherProcess start(const std::string& script, std::vector<std::string> options = {}) const {
    options.insert(options.end(), {"sh", "-c", script});
    return LauncherProcess(on_both(options), path_from(scratch_));
  }
  // The part of one host, started by hand.
  LauncherProcess start_by_hand(int node_rank, const std::string& script,
                                const std::vector<std::string>& options = {}) const {
    std::vector<std::string> words = options;
    words.insert(words.end(), {"sh", "-c", script});
    return LauncherProcess(by_hand_command(node_rank, 2, 2, port_, words),
                           {{"ZERORUN_JOB_SECRET", "s"}});
  }

  pid_t ssh_pid() const { return std::stoi(scratch_.read("ssh.pid")); }

  Scratch scratch_;
  uint16_t port_ = reserve_port("127.0.0.1", 0).port;  // of those that are started by hand
};

const std::string kPlace = "echo $RANK $LOCAL_RANK $WORLD_SIZE $NODE_RANK $GROUP_WORLD_SIZE";
const std::multiset<std::string> kPlaces = {"0 0 4 0 2", "1 1 4 0 2", "2 0 4 1 2", "3 1 4 1 2"};

const std::multiset<std::string> kAllOfFour = {"0 of 4", "1 of 4", "2 of 4", "3 of 4"};

TEST_F(TwoHosts, EveryRankKnowsItsPlaceAndAllMeetAtOneWithOneSecret) {
  LauncherProcess job =
      start(kPlace + " at $MASTER_ADDR $MASTER_PORT $ZERORUN_JOB_SECRET on $ON_HOST.");
  std::multiset<std::string> places;
  std::set<std::string> meetings;
  for (int i = 0; i < 4; ++i) {
    const std::string line = job.read_line();
    const size_t at = line.find(" at ");
    const size_t on = line.find(" on ");
    places.insert(line.substr(0, at));
    meetings.insert(line.substr(at, on - at));
    EXPECT_EQ(line.substr(on), line < "2" ? " on ." : " on 127.0.0.2.");
  }
  EXPECT_EQ(places, kPlaces);
  EXPECT_THAT(meetings, SizeIs(1));
  EXPECT_THAT(job.end(), ended(0, ""));
}

TEST_F(TwoHosts, AFailureElsewhereEndsAllAndIsReportedLast) {
  EXPECT_THAT(start("test $RANK = 3 && { echo broken >&2; exit 7; }; exec sleep 1000").end(),
              ended(7, HasAll("broken\n", "[zerorun] error: rank 3 of 4",
                              EndsWith("failed with exit code 7\n"))));
  EXPECT_THAT(start("test $RANK = 2 && kill -9 $$; exec sleep 1000").end(),
              ended(128 + SIGKILL, HasSubstr("rank 2 of 4")));
}

TEST_F(TwoHosts, WhatDoesNotStartElsewhereIsNamedAtOnce) {
  EXPECT_THAT(LauncherProcess(on_both({scratch_.path("absent")}), path_from(scratch_)).end(),
              ended(2, HasSubstr("absent")));
  scratch_.write("unreachable", "");
  EXPECT_THAT(
      start("exec sleep 1000").end(),
      ended(1, HasAll("no launcher on host 127.0.0.2 (node 1): ssh ended with 255", "no route")));
  std::filesystem::remove(scratch_.path("ssh"));
  EXPECT_THAT(LauncherProcess(on_both({"/bin/true"}), {{"PATH", scratch_.path().string()}}).end(),
              ended(2, HasSubstr("ssh is not in PATH")));
}

// Ranks that say that they are there.
const std::string kWaiting = "echo ready; exec sleep 1000";

void expect_loss(LauncherProcess& job, const std::string& error) {
  EXPECT_EQ(job.wait(), 1);
  EXPECT_THAT(job.errors(), HasSubstr(error));
  EXPECT_TRUE(wait_until_gone(job.members()));
}

TEST_F(TwoHosts, Kill9OfSshEndsTheJobOnBothHosts) {
  LauncherProcess job = start(kWaiting);
  job.await_ready(4);
  kill(ssh_pid(), SIGKILL);
  expect_loss(job, "host 127.0.0.2 (node 1) was lost");
}

TEST_F(TwoHosts, Kill9OfLauncherOrCoordinatorLeavesNothing) {
  for (const bool of_launcher : {true, false}) {
    LauncherProcess job = start(kWaiting);
    job.await_ready(4);
    const auto members = job.members();
    kill(of_launcher ? job.pid() : parent_of(ssh_pid()), SIGKILL);
    EXPECT_EQ(job.wait(), 128 + SIGKILL);
    EXPECT_TRUE(wait_until_gone(members));
  }
}

TEST_F(TwoHosts, AStoppedLauncherIsALostHost) {
  LauncherProcess job = start("test $RANK = 3 && echo $PPID; exec sleep 1000");
  kill(std::stoi(job.read_line()), SIGSTOP);
  expect_loss(job, "host 127.0.0.2 (node 1) was lost: nothing was heard");
}

TEST_F(TwoHosts, ASignalLetsTheRanksOfAllHostsSave) {
  LauncherProcess job =
      start("trap 'echo saved; exit 0' INT TERM; echo ready; while :; do sleep 1000 & wait; done");
  job.await_ready(4);
  kill(job.pid(), SIGINT);
  EXPECT_THAT(job.end(),
              ended(128 + SIGINT, Not(HasSubstr("error")), "saved\nsaved\nsaved\nsaved\n"));
}

TEST_F(TwoHosts, AFailedJobStartsAnew) {
  LauncherProcess job = start(
      "test $TORCHELASTIC_RESTART_COUNT = 0 && { test $RANK = 3 && exit 5; exec sleep 1000; }; "
      "echo $TORCHELASTIC_MAX_RESTARTS $TORCHELASTIC_RUN_ID $ZERORUN_RESTART_REASON",
      {"--max_restarts", "2", "--rdzv_id", "job7"});
  EXPECT_THAT(job.end(), ended(0, HasSubstr("restart 1 of 2 on 2 hosts: rank 3 on ")));
  EXPECT_THAT(lines_of(job.output()),
              AllOf(SizeIs(4), ::testing::Each(HasAll(StartsWith("2 job7 rank 3 on "),
                                                      "failed with exit code 5"))));
}

// What becomes of a job that may restart once when a host is lost.
struct LostCase {
  std::string label;
  std::vector<std::string> options;
  bool away = true;   // so that ssh does not reach it
  bool back = false;  // after a while
  int code = 0;
  TextMatcher errors = ::testing::_;
  std::multiset<std::string> lines = kAllOfFour;
};

void PrintTo(const LostCase& row, std::ostream* out) { *out << row.label; }

class LostHost : public TwoHosts, public ::testing::WithParamInterface<LostCase> {};

TEST_P(LostHost, IsJoinedAgainOrLeftOrNamed) {
  const LostCase& row = GetParam();
  std::vector<std::string> options = row.options;
  options.insert(options.end(), {"--max_restarts", "1"});
  LauncherProcess job = start(
      "test $TORCHELASTIC_RESTART_COUNT = 1 && { echo $RANK of $WORLD_SIZE; exit 0; }; " + kWaiting,
      options);
  job.await_ready(4);
  if (row.away) scratch_.write("unreachable", "");
  kill(ssh_pid(), SIGKILL);
  if (row.back) {
    while (!job.read_error_line().ends_with("no route; it is called again every 10 s")) {
    }
    std::filesystem::remove(scratch_.path("unreachable"));
  }
  EXPECT_EQ(job.wait(), row.code);
  EXPECT_THAT(job.errors(), row.errors);
  EXPECT_EQ(lines_of(job.output()), row.lines);
  EXPECT_TRUE(wait_until_gone(job.members()));
}

INSTANTIATE_TEST_SUITE_P(
    Table, LostHost,
    ::testing::Values(
        LostCase{.label = "leaves a smaller job",
                 .options = {"--nnodes", "1:2"},
                 .errors = HasAll("restart 1 of 1 on 1 hosts", "no route; going on without it"),
                 .lines = {"0 of 2", "1 of 2"}},
        LostCase{.label = "that is back joins the restarted job",
                 .options = {"--nnodes", "1:2"},
                 .away = false,
                 .errors = HasSubstr("for lost hosts to join again: 127.0.0.2 (node 1)")},
        LostCase{.label = "of a fixed number is waited for", .back = true},
        LostCase{.label = "that does not come back is named with its loss",
                 .options = {"--rdzv_conf", "join_timeout=1"},
                 .code = 1,
                 .errors = HasAll("not all hosts have joined within 1 s; there: localhost",
                                  "missing: 127.0.0.2 (node 1)",
                                  "the job was to start anew: host 127.0.0.2 (node 1) was lost"),
                 .lines = {}}));

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
  const auto launcher = on_both({"sh", "-c", "echo x; echo y >&2"});
  command.insert(command.end(), launcher.begin(), launcher.end());
  EXPECT_THAT(LauncherProcess(command, path_from(scratch_)).end(), ended(0));
}

TEST_F(TwoHosts, StartedByHandTheyMeet) {
  LauncherProcess second = start_by_hand(1, kPlace);
  LauncherProcess first = start_by_hand(0, kPlace);
  EXPECT_EQ(first.wait(), 0);
  EXPECT_EQ(second.wait(), 0);
  EXPECT_EQ(lines_of(first.output() + second.output()), kPlaces);
}

TEST_F(TwoHosts, StartedByHandCtrlCOnAnyHostLetsAllRanksSave) {
  struct Case {
    std::set<size_t> asked;        // hosts
    std::optional<size_t> done{};  // the host whose ranks have ended before
  };
  for (const auto& [asked, done] :
       {Case{{0}}, Case{{1}}, Case{{1, 0}}, Case{{0}, 0}, Case{{1}, 1}}) {
    // None ends before all have been told.
    const Scratch told;
    const std::string script = fmt::format(
        "trap 'cd {}; echo > $RANK; while test $(echo * | wc -w) != {}; do sleep 0.1; done; "
        "echo saved; exit 0' INT; test $NODE_RANK = {} && echo $$ && exit 0; "
        "echo ready; while :; do sleep 0.1; done",
        told.path().string(), done ? 2 : 4, done ? std::to_string(*done) : "none");
    LauncherProcess second = start_by_hand(1, script);
    LauncherProcess first = start_by_hand(0, script);
    const std::array<LauncherProcess*, 2> hosts = {&first, &second};
    std::vector<pid_t> exited;
    for (const size_t host : {0, 1, 0, 1}) {
      const std::string line = hosts[host]->read_line();
      if (host == done) {
        exited.push_back(std::stoi(line));
      } else {
        EXPECT_EQ(line, "ready");
      }
    }
    EXPECT_TRUE(wait_until_gone(exited));
    for (const size_t host : asked) kill(hosts[host]->pid(), SIGINT);
    for (const size_t host : {0, 1}) {
      EXPECT_EQ(hosts[host]->wait(), 128 + SIGINT);
      EXPECT_EQ(hosts[host]->output(), host == done ? "" : "saved\nsaved\n");
    }
  }
}

TEST_F(TwoHosts, StartedByHandTheyEndTogetherWithOneExitCode) {
  const std::string script = "test $RANK = 2 && exit 9; exec sleep 1000";
  LauncherProcess second = start_by_hand(1, script);
  LauncherProcess first = start_by_hand(0, script);
  EXPECT_EQ(first.wait(), 9);
  EXPECT_EQ(second.wait(), 9);
  EXPECT_THAT(first.errors(), HasSubstr("rank 2 of 4"));
}

// No ssh ends it.
TEST_F(TwoHosts, StartedByHandTheLossOfTheFirstEndsTheOther) {
  LauncherProcess first = start_by_hand(0, kWaiting);
  LauncherProcess second = start_by_hand(1, kWaiting);
  first.await_ready(2);
  second.await_ready(2);
  kill(first.pid(), SIGKILL);
  expect_loss(second, "lost the connection to the launcher at 127.0.0.1");
}

TEST_F(TwoHosts, DifferentProgramsAreAnError) {
  LauncherProcess first = start_by_hand(0, "exec sleep 1000");
  LauncherProcess second = start_by_hand(1, "exec sleep 2000");
  EXPECT_THAT(first.end(),
              ended(2, HasAll("the hosts run different commands", "sleep 1000", "sleep 2000")));
  EXPECT_EQ(second.wait(), 2);
}

TEST_F(TwoHosts, AHostThatDoesNotComeIsNamedAndAnUnauthenticatedClientIsNotLetIn) {
  LauncherProcess first = start_by_hand(0, "exec sleep 1000", {"--rdzv_conf", "join_timeout=2"});
  const auto deadline = std::chrono::steady_clock::now() + 30s;
  const FileDescriptor unknown = connect_to("127.0.0.1", port_, deadline);
  send_frame(unknown, ControlMessage("join").add("program", "x").add("token", "wrong").encode(),
             deadline);
  EXPECT_THAT(first.end(),
              ended(1, HasAll("not all hosts have joined within 2 s", "missing: (node 1)")));
}

}  // namespace
}  // namespace zerorun::testing::nodes_test
