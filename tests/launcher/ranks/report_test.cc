#include "launcher/ranks/report.h"

#include "tests/common.h"

namespace zerorun {
namespace {

// As waitpid reports them (wait(2)).
int exited(int code) { return W_EXITCODE(code, 0); }
int killed(int signal) { return W_EXITCODE(0, signal); }

RankFailure failure_with(int status, std::vector<std::string> last_lines = {}) {
  RankFailure failure;
  failure.rank = 1;
  failure.ranks = 4;
  failure.pid = 4242;
  failure.host = "node7";
  failure.status = status;
  failure.last_lines = std::move(last_lines);
  return failure;
}

TEST(FailureReport, EndsWithHowAndWhy) {
  EXPECT_EQ(describe_failure(failure_with(killed(SIGSEGV), {"Traceback", "Error: x"})),
            "[zerorun] last lines of rank 1:\n"
            "  Traceback\n"
            "  Error: x\n"
            "[zerorun] error: rank 1 of 4 (pid 4242 on node7) was killed by SIGSEGV (signal 11)\n"
            "[zerorun] likely cause: a bug in native code (segmentation fault), or a tensor that "
            "shares the memory of a gathered parameter (stage 3) and was read after the gather: "
            "clone() it before\n");
}

TEST(FailureReport, DoesNotRepeatLinesOfASingleRank) {
  RankFailure failure = failure_with(exited(1), {"Error: x"});
  failure.rank = 0;
  failure.ranks = 1;
  EXPECT_EQ(describe_failure(failure),
            "[zerorun] error: rank 0 of 1 (pid 4242 on node7) failed with exit code 1\n");
}

TEST(LikelyCause, OfASignalIsTheOomKillerKill9OrSharedMemory) {
  RankFailure failure = failure_with(killed(SIGKILL));
  EXPECT_THAT(likely_cause(failure), HasSubstr("kill -9"));
  failure.oom_kill = true;
  EXPECT_THAT(likely_cause(failure), AllOf(HasSubstr("OOM killer"), Not(HasSubstr("kill -9"))));
  failure = failure_with(killed(SIGBUS));
  failure.shm_available = 3 << 20;
  EXPECT_THAT(likely_cause(failure), HasSubstr("/dev/shm has 3 MiB left"));
}

TEST(LikelyCause, IsReadFromWhatTheRankSaid) {
  const auto cause_of = [](const char* line) {
    return likely_cause(failure_with(exited(2), {"usage: x.py", line}));
  };
  EXPECT_THAT(cause_of("RuntimeError: No CUDA GPUs are available"), HasSubstr("GPU is missing"));
  EXPECT_EQ(cause_of("ValueError: x"), "");
}

TEST(LikelyCause, OfAMissingPackageIsThePython) {
  for (const std::string missing : {"torch", "zerorun"}) {
    RankFailure failure =
        failure_with(exited(1), {"ModuleNotFoundError: No module named '" + missing + "'"});
    failure.no_package = "/usr/bin/python3 does not have the package zerorun; do this";
    EXPECT_EQ(likely_cause(failure), missing == "torch" ? "" : failure.no_package);
  }
}

}  // namespace
}  // namespace zerorun
