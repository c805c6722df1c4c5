// How jobs end: by failures, by the user, by kill -9 of any member. Nothing may be left over.

#include "os/process_identity.h"
#include "tests/common.h"
#include "tests/launcher/launcher_process.h"
#include "tests/scratch.h"

namespace zerorun {
namespace {

using testing::LauncherProcess;
using testing::Scratch;
using testing::shell_ranks;
using testing::wait_until_gone;

// Each rank has a child in its process group and a daemon in a session of its own, and says
// "RANK PID" when both are there.
const std::string kFamily = "sleep 1000 & (setsid sleep 1000 &); echo $RANK $$; wait";
// Two ranks of that family, the supervisor and the launcher.
constexpr size_t kFamilySize = 2 * 3 + 2;

// The processes of a family. One that is in exec shows no environment to be known by, so this waits
// until all are there.
std::vector<pid_t> family_of(const LauncherProcess& job) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  std::vector<pid_t> members = job.members();
  while (members.size() < kFamilySize && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
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

std::string make_fifo(const Scratch& scratch) {
  const std::string path = (scratch.path() / "fifo").string();
  if (mkfifo(path.c_str(), 0600) != 0) throw std::runtime_error("mkfifo failed: " + path);
  return path;
}

TEST(Failure, ExitCodeIsTheFirstFailingRanks) {
  LauncherProcess job(shell_ranks(3, "test $RANK = 1 && exit 7; exec sleep 1000"));
  EXPECT_EQ(job.wait(), 7);
  EXPECT_THAT(job.errors(), HasSubstr("rank 1 of 3"));
  EXPECT_THAT(job.errors(), EndsWith("failed with exit code 7\n"));
  EXPECT_THAT(job.members(), IsEmpty());
}

TEST(Failure, RanksThatIgnoreSigtermEndToo) {
  const Scratch scratch;
  const std::string fifo = make_fifo(scratch);
  LauncherProcess job(shell_ranks(2, "test $RANK = 1 && { read line < " + fifo +
                                         "; exit 3; }; trap '' TERM; echo deaf > " + fifo +
                                         "; while :; do sleep 1000; done"));
  EXPECT_EQ(job.wait(), 3);
  EXPECT_THAT(job.members(), IsEmpty());
}

// Rank 0 speaks after rank 1.
TEST(Failure, LastLinesAreTheLastThingPrinted) {
  const Scratch scratch;
  const std::string fifo = make_fifo(scratch);
  LauncherProcess job(
      shell_ranks(2, "test $RANK = 0 && { trap 'echo bye >&2; exit 0' TERM; echo ready > " + fifo +
                         "; sleep 1000 & wait; }; read line < " + fifo +
                         "; for i in $(seq 30); do echo line $i >&2; done; exit 1"));
  EXPECT_EQ(job.wait(), 1);
  std::string expected = "[zerorun] last lines of rank 1:\n";
  for (int i = 11; i <= 30; ++i) expected += "  line " + std::to_string(i) + "\n";
  const size_t report = job.errors().find("[zerorun] last lines");
  ASSERT_NE(report, std::string::npos);
  EXPECT_THAT(job.errors().substr(report), StartsWith(expected));
  EXPECT_THAT(job.errors(), EndsWith("failed with exit code 1\n"));
}

TEST(Failure, LinesThatAreTheLastOnesAlreadyAreNotRepeated) {
  LauncherProcess job(
      shell_ranks(2, "test $RANK = 0 && exec sleep 1000; echo one >&2; echo two >&2; exit 1"));
  EXPECT_EQ(job.wait(), 1);
  EXPECT_THAT(job.errors(), StartsWith("[rank 1] one\n[rank 1] two\n[zerorun] error: rank 1 of 2"));
}

TEST(Failure, WithoutStandardErrorTheLastLinesAreStandardOutputs) {
  const Scratch scratch;
  LauncherProcess job(shell_ranks(2,
                                  "test $RANK = 0 && exec sleep 1000; echo only on stdout; exit 1",
                                  {"--log_dir", scratch.path().string()}));
  EXPECT_EQ(job.wait(), 1);
  EXPECT_THAT(job.errors(), StartsWith("[zerorun] last lines of rank 1:\n  only on stdout\n"));
}

TEST(Failure, AWrongProgramOptionIsExplained) {
  LauncherProcess job(
      shell_ranks(2, "echo 'x.py: error: unrecognized arguments: --local_rank=0' >&2; exit 2"));
  EXPECT_EQ(job.wait(), 2);
  EXPECT_THAT(job.errors(), HasSubstr("likely cause: the program does not take --local_rank=N"));
}

TEST(Failure, IsNoticedWhenTheParentIgnoredItsChildren) {
  std::vector<std::string> command = shell_ranks(1, "exit 5");
  command.insert(command.begin(), {"env", "--ignore-signal=CHLD"});
  LauncherProcess job(std::move(command));
  EXPECT_EQ(job.wait(), 5);
}

TEST(Kill9, OfARankEndsTheJob) {
  LauncherProcess job(shell_ranks(2, kFamily));
  const auto pids = read_pids(job);
  kill(pids[1], SIGKILL);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_THAT(job.errors(), HasSubstr("rank 1 of 2 (pid " + std::to_string(pids[1])));
  EXPECT_THAT(job.errors(), HasSubstr("was killed by SIGKILL (signal 9)"));
  EXPECT_THAT(job.members(), IsEmpty());
}

TEST(Kill9, OfTheLauncherLeavesNothing) {
  LauncherProcess job(shell_ranks(2, kFamily));
  read_pids(job);
  const auto members = family_of(job);
  kill(job.pid(), SIGKILL);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_TRUE(wait_until_gone(members));
  EXPECT_THAT(job.members(), IsEmpty());
}

TEST(Kill9, OfTheSupervisorLeavesNothing) {
  LauncherProcess job(shell_ranks(2, kFamily));
  const pid_t supervisor = testing::parent_of(read_pids(job)[0]);
  ASSERT_EQ(testing::parent_of(supervisor), job.pid());
  family_of(job);
  kill(supervisor, SIGKILL);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_THAT(job.errors(), HasSubstr("supervisor was killed by SIGKILL"));
  EXPECT_THAT(job.members(), IsEmpty());
}

TEST(Kill9, OfLauncherAndSupervisorAtOnceEndsTheRanks) {
  LauncherProcess job(shell_ranks(2, "echo $RANK $$; exec sleep 1000"));
  const auto ranks = read_pids(job);
  const pid_t supervisor = testing::parent_of(ranks[0]);
  kill(job.pid(), SIGSTOP);  // cannot notice
  kill(supervisor, SIGKILL);
  EXPECT_TRUE(wait_until_gone(ranks));
  kill(job.pid(), SIGKILL);
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_THAT(job.members(), IsEmpty());
}

TEST(End, DaemonsOfRanksThatSucceededDoNotSurvive) {
  LauncherProcess job(
      shell_ranks(2, "sleep 1000 & (setsid sleep 1000 &); exit 0", {"--grace_period", "0.5"}));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_THAT(job.errors(),
              AllOf(HasSubstr("[zerorun] the ranks on " + host_name()),
                    HasSubstr("left processes behind; they have 0.5 s to end: sleep (pid")));
  EXPECT_THAT(job.errors(), EndsWith("have left behind has not ended and is killed\n"));
  EXPECT_THAT(job.members(), IsEmpty());
}

TEST(End, WhatARankHasLeftBehindMayFinish) {
  const Scratch scratch;
  const std::string fifo = make_fifo(scratch);
  LauncherProcess job(shell_ranks(
      1,
      "(read line < " + fifo + "; echo uploaded) & (sleep 0.6; echo go > " + fifo + ") & exit 0"));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.output(), "uploaded\n");
  EXPECT_THAT(job.errors(), Not(HasSubstr("killed")));
}

TEST(Supervision, AFullDiskUnderStandardOutputIsSaidOnceAndTheJobGoesOn) {
  std::vector<std::string> command =
      shell_ranks(2, "for i in 1 2 3; do echo $i; done; echo done >&2");
  command.insert(command.begin(), {"sh", "-c", "exec \"$@\" > /dev/full", "sh"});
  LauncherProcess job(std::move(command));
  EXPECT_EQ(job.wait(), 0);
  const std::string& errors = job.errors();
  const std::string warning = "standard output cannot be written (No space left on device)";
  EXPECT_THAT(errors, HasSubstr(warning));
  EXPECT_EQ(errors.find(warning), errors.rfind(warning));
  EXPECT_THAT(errors, HasSubstr("[rank 1] done\n"));
}

TEST(Restart, AFailedJobStartsAnewAsOftenAsItMay) {
  const Scratch scratch;
  // Rank 1 fails once rank 0 has said its line, which would end with it.
  const std::string said = scratch.path() / "said";
  const std::string script =
      "echo $RANK $TORCHELASTIC_RESTART_COUNT $ZERORUN_RESTART_REASON; "
      "if test $RANK = 0; then echo > " +
      said +
      "$TORCHELASTIC_RESTART_COUNT; exec sleep 1000; fi; "
      "until test -e " +
      said + "$TORCHELASTIC_RESTART_COUNT; do sleep 0.01; done; exit 4";
  LauncherProcess job(shell_ranks(2, script, {"--max_restarts", "1"}));
  EXPECT_EQ(job.wait(), 4);
  EXPECT_THAT(job.output(), HasSubstr("0 0\n"));
  EXPECT_THAT(job.output(), HasSubstr("0 1 rank 1 on "));
  EXPECT_THAT(job.errors(), HasSubstr("restart 1 of 1: rank 1 on "));
  EXPECT_THAT(job.errors(), EndsWith("failed with exit code 4\n"));
  EXPECT_THAT(job.members(), IsEmpty());
}

TEST(Restart, ARequestToEndIsNoFailure) {
  LauncherProcess job(shell_ranks(1, "echo ready; exec sleep 1000", {"--max_restarts", "5"}));
  job.await_ready(1);
  kill(job.pid(), SIGTERM);
  EXPECT_EQ(job.wait(), 128 + SIGTERM);
  EXPECT_THAT(job.errors(), Not(HasSubstr("restart")));
}

TEST(Stopped, ARankIsNamedAtOnceAndBlamedForItsPeersTimeout) {
  const Scratch scratch;
  const std::string fifo = make_fifo(scratch);
  LauncherProcess job(
      shell_ranks(2, "echo $RANK $$; test $RANK = 1 && exec sleep 1000; read go < " + fifo +
                         "; echo timeout >&2; exit 1"));
  const pid_t stopped = read_pids(job)[1];
  kill(stopped, SIGSTOP);
  const std::string rank = "rank 1 (pid " + std::to_string(stopped) + " on ";
  EXPECT_THAT(job.read_error_line(), HasSubstr(rank));
  std::ofstream(fifo) << "go\n";
  EXPECT_EQ(job.wait(), 1);
  EXPECT_THAT(job.errors(), HasSubstr("[zerorun] error: " + rank));
  EXPECT_THAT(job.errors(), HasSubstr("was stopped (SIGSTOP); the others waited for it"));
}

TEST(Failure, ARecordedExceptionIsPartOfTheReport) {
  LauncherProcess job(
      shell_ranks(1,
                  "echo '{\"message\": {\"message\": \"ValueError: nine\", \"extraInfo\": "
                  "{\"py_callstack\": \"at line 3\"}}}' > $TORCHELASTIC_ERROR_FILE; exit 1"));
  EXPECT_EQ(job.wait(), 1);
  EXPECT_THAT(job.errors(),
              HasSubstr("[zerorun] exception of rank 0: ValueError: nine\nat line 3\n"));
}

// Ranks that save when interrupted and say "ready" when they can be.
const std::string kSaving =
    "trap 'echo saved $RANK; exit 0' INT TERM HUP; echo ready; while :; do sleep 1000 & wait; done";

class Stop : public ::testing::TestWithParam<int> {};

TEST_P(Stop, LetsRanksSaveAndExitsWith128PlusSignal) {
  LauncherProcess job(shell_ranks(2, kSaving));
  job.await_ready(2);
  kill(job.pid(), GetParam());
  EXPECT_EQ(job.wait(), 128 + GetParam());
  EXPECT_THAT(job.output(), HasSubstr("saved 0\n"));
  EXPECT_THAT(job.output(), HasSubstr("saved 1\n"));
  EXPECT_THAT(job.errors(), HasSubstr("ending 2 ranks within 30 s"));
  EXPECT_THAT(job.errors(), Not(HasSubstr("error")));
  EXPECT_THAT(job.members(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Signals, Stop, ::testing::Values(SIGINT, SIGTERM, SIGHUP));

// Ranks that ignore every request to end.
const std::string kDeaf = "trap '' INT TERM HUP; echo ready; while :; do sleep 1000; done";

// Says "ready" when asked to end it can fail.
std::string failing_save(const std::string& rank) {
  return "test $RANK = " + rank +
         " && trap 'echo the disk is full >&2; exit 3' INT TERM HUP || "
         "trap 'echo saved; exit 0' INT TERM HUP; echo ready; while :; do sleep 1000 & wait; done";
}

TEST_P(Stop, ReportsARankThatFailsToSave) {
  for (const char* rank : {"0", "1"}) {
    LauncherProcess job(shell_ranks(2, failing_save(rank)));
    job.await_ready(2);
    kill(job.pid(), GetParam());
    EXPECT_EQ(job.wait(), 3);
    EXPECT_EQ(job.output(), "saved\n");  // the other one was left to it
    EXPECT_THAT(job.errors(), HasSubstr("the disk is full\n"));
    EXPECT_THAT(job.errors(), HasSubstr(std::string("[zerorun] error: rank ") + rank + " of 2"));
    EXPECT_THAT(job.errors(), EndsWith("failed with exit code 3\n"));
  }
}

TEST_P(Stop, ReportsARankThatAnotherSignalKillsInSaving) {
  LauncherProcess job(shell_ranks(1,
                                  "trap 'kill -KILL $$' INT TERM HUP; echo ready; "
                                  "while :; do sleep 1000 & wait; done"));
  job.await_ready(1);
  kill(job.pid(), GetParam());
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_THAT(job.errors(), HasSubstr("[zerorun] error: rank 0 of 1"));
}

// A program without a handler dies of the signal, and its peers fail.
TEST_P(Stop, APeersErrorsAfterADeathBySignalAreItsConsequence) {
  const Scratch scratch;
  const std::string fifo = make_fifo(scratch);
  LauncherProcess job(
      shell_ranks(2, "test $RANK = 0 && { echo $$ > " + fifo +
                         "; echo ready; exec sleep 1000; }; read peer < " + fifo +
                         "; trap 'while kill -0 $peer; do :; done; exit 1' INT TERM HUP; "
                         "echo ready; while :; do sleep 1000 & wait; done"));
  job.await_ready(2);
  kill(job.pid(), GetParam());
  EXPECT_EQ(job.wait(), 128 + GetParam());
  EXPECT_THAT(job.errors(), Not(HasSubstr("[zerorun] error")));
}

TEST(StopRequest, ASecondInterruptEndsDeafRanksAtOnce) {
  LauncherProcess job(shell_ranks(2, kDeaf));
  job.await_ready(2);
  kill(job.pid(), SIGINT);
  EXPECT_THAT(job.read_error_line(), HasSubstr("SIGINT: ending 2 ranks"));
  kill(job.pid(), SIGINT);
  EXPECT_EQ(job.wait(), 128 + SIGINT);
  EXPECT_THAT(job.members(), IsEmpty());
}

TEST(StopRequest, TheGracePeriodEndsDeafRanks) {
  LauncherProcess job(shell_ranks(2, kDeaf, {"--grace_period", "0.1"}));
  job.await_ready(2);
  kill(job.pid(), SIGTERM);
  EXPECT_EQ(job.wait(), 128 + SIGTERM);
  EXPECT_THAT(job.errors(), HasSubstr("not all ranks have ended within 0.1 s: they are killed"));
  EXPECT_THAT(job.members(), IsEmpty());
}

TEST(StopRequest, SigtermSparesTheWorkersOfARankThatSaves) {
  const Scratch scratch;
  const std::string fifo = make_fifo(scratch);
  LauncherProcess job(shell_ranks(1, "exec 3<>" + fifo + "; sh -c 'read line <&3' & worker=$!; " +
                                         "trap 'echo go >&3; wait $worker; echo worker $?; exit' " +
                                         "TERM; echo ready; wait"));
  job.await_ready(1);
  kill(job.pid(), SIGTERM);
  EXPECT_EQ(job.wait(), 128 + SIGTERM);
  EXPECT_EQ(job.output(), "worker 0\n");
}

TEST(StopRequest, NohupProtectsFromAClosingTerminal) {
  const std::string zerorun = testing::zerorun_command({}).front();
  LauncherProcess job({"sh", "-c",
                       "trap '' HUP; exec " + zerorun + " --accelerator cpu sh -c \"" +
                           "trap 'echo done; exit 0' USR1; echo ready; sleep 1000 & wait\""});
  EXPECT_EQ(job.read_line(), "ready");
  kill(job.pid(), SIGHUP);
  kill(job.pid(), SIGUSR1);
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.output(), "done\n");
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
  for (const pid_t rank : ranks) EXPECT_TRUE(testing::wait_for_state(rank, 'T'));
  kill(job.pid(), SIGCONT);
  kill(job.pid(), SIGUSR1);
  EXPECT_EQ(job.read_line(), "passed");
  EXPECT_EQ(job.read_line(), "passed");
  kill(job.pid(), SIGINT);
  EXPECT_EQ(job.wait(), 128 + SIGINT);
}

}  // namespace
}  // namespace zerorun
