#include "launcher/ranks/report.h"

#include "tests/common.h"

namespace zerorun {
namespace {

// As waitpid reports them (wait(2)).
int exited(int code) { return W_EXITCODE(code, 0); }
int killed(int signal) { return W_EXITCODE(0, signal); }

RankFailure failure_with(int status) {
  RankFailure failure;
  failure.rank = 1;
  failure.ranks = 4;
  failure.pid = 4242;
  failure.host = "node7";
  failure.status = status;
  return failure;
}

TEST(ExitCode, IsTheRanksOr128PlusSignal) {
  EXPECT_EQ(exit_code_of(exited(3)), 3);
  EXPECT_EQ(exit_code_of(killed(SIGKILL)), 137);
  EXPECT_EQ(exit_code_of(killed(SIGSEGV)), 139);
}

TEST(FailureReport, EndsWithHowAndWhy) {
  RankFailure failure = failure_with(killed(SIGSEGV));
  failure.last_lines = {"Traceback", "Error: x"};
  EXPECT_EQ(describe_failure(failure),
            "[zerorun] last lines of rank 1:\n"
            "  Traceback\n"
            "  Error: x\n"
            "[zerorun] error: rank 1 of 4 (pid 4242 on node7) was killed by SIGSEGV (signal 11)\n"
            "[zerorun] likely cause: a bug in native code (segmentation fault), or a tensor that "
            "shares the memory of a gathered parameter (stage 3) and was read after the gather: "
            "clone() it before\n");
}

TEST(FailureReport, OfASingleRankDoesNotRepeatItsLines) {
  RankFailure failure = failure_with(exited(1));
  failure.rank = 0;
  failure.ranks = 1;
  failure.last_lines = {"Error: x"};
  EXPECT_EQ(describe_failure(failure),
            "[zerorun] error: rank 0 of 1 (pid 4242 on node7) failed with exit code 1\n");
}

TEST(FailureReport, DoesNotRepeatLinesInView) {
  RankFailure failure = failure_with(exited(1));
  failure.last_lines = {"Error: x"};
  failure.lines_in_view = true;
  EXPECT_EQ(describe_failure(failure),
            "[zerorun] error: rank 1 of 4 (pid 4242 on node7) failed with exit code 1\n");
}

TEST(LikelyCause, TellsTheOomKillerFromKill9) {
  RankFailure failure = failure_with(killed(SIGKILL));
  EXPECT_THAT(likely_cause(failure), HasSubstr("kill -9"));
  failure.oom_kill = true;
  EXPECT_THAT(likely_cause(failure), HasSubstr("OOM killer"));
  EXPECT_THAT(likely_cause(failure), Not(HasSubstr("kill -9")));
}

TEST(LikelyCause, OfABusErrorIsSharedMemory) {
  RankFailure failure = failure_with(killed(SIGBUS));
  failure.shm_available = 3 << 20;
  EXPECT_THAT(likely_cause(failure), HasSubstr("/dev/shm has 3 MiB left"));
}

TEST(LikelyCause, IsReadFromWhatTheRankSaid) {
  RankFailure failure = failure_with(exited(2));
  failure.last_lines = {"usage: x.py", "x.py: error: unrecognized arguments: --local_rank=1"};
  EXPECT_THAT(likely_cause(failure), HasSubstr("--local_rank never"));
  failure.last_lines = {"RuntimeError: No CUDA GPUs are available"};
  EXPECT_THAT(likely_cause(failure), HasSubstr("GPU is missing"));
}

TEST(LikelyCause, OfAMissingPackageIsThePython) {
  RankFailure failure = failure_with(exited(1));
  failure.no_package = "/usr/bin/python3 does not have the package zerorun; do this";
  failure.last_lines = {"ModuleNotFoundError: No module named 'torch'"};
  EXPECT_EQ(likely_cause(failure), "");
  failure.last_lines = {"ModuleNotFoundError: No module named 'zerorun'"};
  EXPECT_EQ(likely_cause(failure), failure.no_package);
}

TEST(LikelyCause, IsEmptyWhenTheRankHasSaidItAll) {
  RankFailure failure = failure_with(exited(1));
  failure.last_lines = {"ValueError: x"};
  EXPECT_EQ(likely_cause(failure), "");
}

}  // namespace
}  // namespace zerorun
