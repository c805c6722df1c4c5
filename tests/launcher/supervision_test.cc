// How jobs end: by failures, by the user, by kill -9 of any member. Nothing may be left over.

#include "os/process_identity.h"
#include "tests/launcher/launcher_process.h"

namespace zerorun::testing {
namespace {

std::vector<std::string> after(std::vector<std::string> words, std::vector<std::string> command) {
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

std::string last_lines_of_rank_1() {
  std::string text = "[zerorun] last lines of rank 1:\n";
  for (int i = 11; i <= 30; ++i) text += fmt::format("  line {}\n", i);
  return text;
}

INSTANTIATE_TEST_SUITE_P(
    ByItself, JobTest,
    ::testing::ValuesIn(std::to_array<JobCase>(
        {{"the code is the first failing rank's",
          shell_ranks(3, "test $RANK = 1 && exit 7; exec sleep 1000"),
          ended(7, HasAll("rank 1 of 3", EndsWith("failed with exit code 7\n")))},
         {"ranks that ignore SIGTERM end too",
          shell_ranks(2,
                      "test $RANK = 1 && { read line < $SCRATCH/fifo; exit 3; }; "
                      "trap '' TERM; echo deaf > $SCRATCH/fifo; while :; do sleep 1000; done"),
          ended(3)},
         // Rank 0 speaks after rank 1.
         {"last lines are the last thing printed",
          shell_ranks(2,
                      "test $RANK = 0 && { trap 'echo bye >&2; exit 0' TERM; "
                      "echo ready > $SCRATCH/fifo; sleep 1000 & wait; }; "
                      "read line < $SCRATCH/fifo; "
                      "for i in $(seq 30); do echo line $i >&2; done; exit 1"),
          ended(1, HasAll(last_lines_of_rank_1(), EndsWith("failed with exit code 1\n")))},
         {"last lines in view are not repeated",
          shell_ranks(2, "test $RANK = 0 && exec sleep 1000; echo one >&2; echo two >&2; exit 1"),
          ended(1, StartsWith("[rank 1] one\n[rank 1] two\n[zerorun] error: rank 1 of 2"))},
         {"without standard error the last lines are standard output's",
          shell_ranks(2, "test $RANK = 0 && exec sleep 1000; echo only on stdout; exit 1",
                      {"--log_dir", "$SCRATCH"}),
          ended(1, StartsWith("[zerorun] last lines of rank 1:\n  only on stdout\n"))},
         {"a wrong option of the program is explained",
          shell_ranks(2,
                      "echo 'x.py: error: unrecognized arguments: --local_rank=0' >&2; "
                      "exit 2"),
          ended(2, HasSubstr("likely cause: the program does not take --local_rank=N"))},
         {"noticed when the parent ignored its children",
          after({"env", "--ignore-signal=CHLD"}, shell_ranks(1, "exit 5")), ended(5)},
         {"a limit of a file's size costs the log, and ends ranks as it does without a launcher",
          after({"sh", "-c", "ulimit -f 1; exec \"$0\" \"$@\""},
                shell_ranks(1, "head -c 9999 /dev/zero >&2; (yes > $SCRATCH/file); exit $?",
                            {"--log_dir", "$SCRATCH"})),
          ended(128 + SIGXFSZ, HasSubstr("cannot be written any more (File too large)"))},
         {"a recorded exception is part of the report",
          shell_ranks(1,
                      "echo '{\"message\": {\"message\": \"ValueError: nine\", \"extraInfo\": "
                      "{\"py_callstack\": \"at line 3\"}}}' > $TORCHELASTIC_ERROR_FILE; "
                      "exit 1"),
          ended(1, HasSubstr("[zerorun] exception of rank 0: ValueError: nine\nat line 3\n"))},
         {"daemons of ranks that succeeded do not survive",
          shell_ranks(2, "sleep 1000 & (setsid sleep 1000 &); exit 0", {"--grace_period", "0.5"}),
          ended(0, HasAll("[zerorun] the ranks on " + host_name(),
                          "left processes behind; they have 0.5 s to end: sleep (pid",
                          EndsWith("have left behind has not ended and is killed\n")))},
         {"what a rank has left behind may finish",
          shell_ranks(1,
                      "(read line < $SCRATCH/fifo; echo uploaded) & "
                      "(sleep 0.6; echo go > $SCRATCH/fifo) & exit 0"),
          ended(0, Not(HasSubstr("killed")), "uploaded\n")},
         // Rank 1 fails once rank 0 has said its line, which would end with it.
         {"a failed job starts anew as often as it may",
          shell_ranks(2,
                      "said=$SCRATCH/said$TORCHELASTIC_RESTART_COUNT; "
                      "echo $RANK $TORCHELASTIC_RESTART_COUNT $ZERORUN_RESTART_REASON; "
                      "if test $RANK = 0; then echo > $said; exec sleep 1000; fi; "
                      "until test -e $said; do sleep 0.01; done; exit 4",
                      {"--max_restarts", "1"}),
          ended(4, HasAll("restart 1 of 1: rank 1 on ", EndsWith("failed with exit code 4\n")),
                HasAll("0 0\n", "0 1 rank 1 on "))},
         {"a full disk under standard output is said once and the job goes on",
          after({"sh", "-c", "exec \"$@\" > /dev/full", "sh"},
                shell_ranks(2, "for i in 1 2 3; do echo $i; done; echo done >&2")),
          ended(0, HasAll("[rank 1] done\n", "output cannot be written (No space left on device)",
                          Not(ContainsRegex("cannot be written.*cannot be written"))))},
         {"a request to end is no failure",
          shell_ranks(1, "echo ready; exec sleep 1000", {"--max_restarts", "5"}),
          ended(128 + SIGTERM, Not(HasSubstr("restart"))), 1, SIGTERM},
         {"the grace period ends deaf ranks",
          shell_ranks(2, "trap '' INT TERM HUP; echo ready; while :; do sleep 1000; done",
                      {"--grace_period", "0.1"}),
          ended(128 + SIGTERM, HasSubstr("not all ranks have ended within 0.1 s: they are killed")),
          2, SIGTERM},
         {"SIGTERM spares the workers of a rank that saves",
          shell_ranks(1,
                      "exec 3<>$SCRATCH/fifo; sh -c 'read line <&3' & worker=$!; "
                      "trap 'echo go >&3; wait $worker; echo worker $?; exit' TERM; "
                      "echo ready; wait"),
          ended(128 + SIGTERM, ::testing::_, "worker 0\n"), 1, SIGTERM}})));

// Ranks do this on a request to end, and say "ready" when they can.
std::string on_request(const std::string& action) {
  return "trap '" + action + "' INT TERM HUP; echo ready; while :; do sleep 1000 & wait; done";
}

std::vector<JobCase> stops() {
  std::vector<JobCase> rows;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const auto add = [&](const std::string& label, int ranks, const std::string& script,
                         const ::testing::Matcher<const Ended&>& expected) {
      rows.push_back({fmt::format("{} {}", strsignal(signal), label), shell_ranks(ranks, script),
                      expected, ranks, signal});
    };
    add("lets ranks save", 2, on_request("echo saved $RANK; exit 0"),
        ended(128 + signal, HasAll("ending 2 ranks within 30 s", Not(HasSubstr("error"))),
              lines_are({"saved 0", "saved 1"})));
    for (const char* rank : {"0", "1"}) {  // the other one is left to save
      add(fmt::format("reports that rank {} fails to save", rank), 2,
          fmt::format("test $RANK = {} && {} || {}", rank,
                      "{ " + on_request("echo the disk is full >&2; exit 3") + "; }",
                      "{ " + on_request("echo saved; exit 0") + "; }"),
          ended(3,
                HasAll("the disk is full\n", fmt::format("[zerorun] error: rank {} of 2", rank),
                       EndsWith("failed with exit code 3\n")),
                "saved\n"));
    }
    add("reports a rank that another signal kills in saving", 1, on_request("kill -KILL $$"),
        ended(128 + SIGKILL, HasSubstr("[zerorun] error: rank 0 of 1")));
    // A program without a handler dies of the signal, and its peers fail.
    add("the errors of a dead rank's peers are a consequence", 2,
        "test $RANK = 0 && { echo $$ > $SCRATCH/fifo; echo ready; exec sleep 1000; }; "
        "read peer < $SCRATCH/fifo; " +
            on_request("while kill -0 $peer; do :; done; exit 1"),
        ended(128 + signal, Not(HasSubstr("[zerorun] error"))));
  }
  return rows;
}

INSTANTIATE_TEST_SUITE_P(BySignals, JobTest, ::testing::ValuesIn(stops()));

INSTANTIATE_TEST_SUITE_P(
    InTheBackground, JobTest,  // of a shell without job control
    ::testing::ValuesIn(std::to_array<JobCase>(
        {{"ranks get a signal that the shell ignores",
          after({"env", "--ignore-signal=QUIT"},
                shell_ranks(2, "trap 'echo saved; exit 0' QUIT; echo ready; sleep 1000 & wait")),
          ended(128 + SIGQUIT, ::testing::_, "saved\nsaved\n"), 2, SIGQUIT}})));

// Each rank has a child in its process group and a daemon in a session of its own, and says
// "RANK PID" when both are there.
const std::string kFamily = "sleep 1000 & (setsid sleep 1000 &); echo $RANK $$; wait";
// Two ranks of that family, the supervisor and the launcher.
constexpr size_t kFamilySize = 2 * 3 + 2;

// The processes of a family. One that is in exec shows no environment to be known by, so this waits
// until all are there.
std::vector<pid_t> family_of(const LauncherProcess& job) {
  const auto deadline = std::chrono::steady_clock::now() + 10s;
  std::vector<pid_t> members = job.members();
  while (members.size() < kFamilySize && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(1ms);
    members = job.members();
  }
  EXPECT_THAT(members, SizeIs(kFamilySize));
  return members;
}

// Reads "RANK PID" lines of two ranks.
std::vector<pid_t> read_pids(LauncherProcess& job) {
  std::vector<pid_t> pids(2);
  for (size_t i = 0; i < pids.size(); ++i) {
    std::istringstream line(job.read_line());
    size_t rank = 0;
    pid_t pid = 0;
    line >> rank >> pid;
    pids.at(rank) = pid;
  }
  return pids;
}

TEST(Kill9, OfARankEndsTheJob) {
  LauncherProcess job(shell_ranks(2, kFamily));
  const auto pids = read_pids(job);
  kill(pids[1], SIGKILL);
  EXPECT_THAT(job.end(), ended(128 + SIGKILL, HasAll(fmt::format("rank 1 of 2 (pid {}", pids[1]),
                                                     "was killed by SIGKILL (signal 9)")));
}

TEST(Kill9, OfTheLauncherLeavesNothing) {
  LauncherProcess job(shell_ranks(2, kFamily));
  read_pids(job);
  const auto members = family_of(job);
  kill(job.pid(), SIGKILL);
  EXPECT_TRUE(wait_until_gone(members));
  EXPECT_THAT(job.end(), ended(128 + SIGKILL));
}

TEST(Kill9, OfTheSupervisorLeavesNothing) {
  LauncherProcess job(shell_ranks(2, kFamily));
  const pid_t supervisor = parent_of(read_pids(job)[0]);
  ASSERT_EQ(parent_of(supervisor), job.pid());
  family_of(job);
  kill(supervisor, SIGKILL);
  EXPECT_THAT(job.end(), ended(128 + SIGKILL, HasSubstr("supervisor was killed by SIGKILL")));
}

TEST(Kill9, OfLauncherAndSupervisorAtOnceEndsTheRanks) {
  LauncherProcess job(shell_ranks(2, "echo $RANK $$; exec sleep 1000"));
  const auto ranks = read_pids(job);
  const pid_t supervisor = parent_of(ranks[0]);
  kill(job.pid(), SIGSTOP);  // cannot notice
  kill(supervisor, SIGKILL);
  EXPECT_TRUE(wait_until_gone(ranks));
  kill(job.pid(), SIGKILL);
  EXPECT_THAT(job.end(), ended(128 + SIGKILL));
}

TEST(Stopped, ARankIsNamedAtOnceAndBlamedForItsPeersTimeout) {
  LauncherProcess job(shell_ranks(2,
                                  "echo $RANK $$; test $RANK = 1 && exec sleep 1000; "
                                  "read go < $SCRATCH/fifo; echo timeout >&2; exit 1"));
  const pid_t stopped = read_pids(job)[1];
  kill(stopped, SIGSTOP);
  const std::string rank = fmt::format("rank 1 (pid {} on ", stopped);
  EXPECT_THAT(job.read_error_line(), HasSubstr(rank));
  std::ofstream(job.scratch().path("fifo")) << "go\n";
  EXPECT_THAT(job.end(), ended(1, HasAll("[zerorun] error: " + rank,
                                         "was stopped (SIGSTOP); the others waited for it")));
}

TEST(StopRequest, ASecondInterruptEndsDeafRanksAtOnce) {
  LauncherProcess job(
      shell_ranks(2, "trap '' INT TERM HUP; echo ready; while :; do sleep 1000; done"));
  job.await_ready(2);
  kill(job.pid(), SIGINT);
  EXPECT_THAT(job.read_error_line(), HasSubstr("SIGINT: ending 2 ranks"));
  kill(job.pid(), SIGINT);
  EXPECT_THAT(job.end(), ended(128 + SIGINT));
}

TEST(StopRequest, NohupProtectsFromAClosingTerminal) {
  LauncherProcess job(
      after({"sh", "-c", "trap '' HUP; exec \"$@\"", "sh"},
            shell_ranks(1, "trap 'echo done; exit 0' USR1; echo ready; sleep 1000 & wait")));
  job.await_ready(1);
  kill(job.pid(), SIGHUP);
  kill(job.pid(), SIGUSR1);
  EXPECT_THAT(job.end(), ended(0, ::testing::_, "done\n"));
}

TEST(JobControl, SuspendsAndResumesTheRanks) {
  LauncherProcess job(shell_ranks(2,
                                  "trap 'echo passed' USR1; echo $RANK $$; "
                                  "while :; do sleep 1000 & wait; done"));
  const auto ranks = read_pids(job);
  kill(job.pid(), SIGTSTP);
  int status = 0;
  ASSERT_EQ(waitpid(job.pid(), &status, WUNTRACED), job.pid());
  EXPECT_TRUE(WIFSTOPPED(status));
  for (const pid_t rank : ranks) EXPECT_TRUE(wait_for_state(rank, 'T'));
  kill(job.pid(), SIGCONT);
  kill(job.pid(), SIGUSR1);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(job.read_line(), "passed");
  kill(job.pid(), SIGINT);
  EXPECT_EQ(job.wait(), 128 + SIGINT);
}

}  // namespace
}  // namespace zerorun::testing
