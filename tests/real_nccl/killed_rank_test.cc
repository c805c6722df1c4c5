// What the real NCCL says of a rank whose process was killed, which a fake of threads cannot have.
#include <signal.h>

#include "tests/common.h"
#include "tests/real_nccl/nccl_under_test.h"

namespace zerorun::testing::nccl_killed_rank {
namespace {

ncclComm_t init(const NcclFunctions& nccl, const ncclUniqueId& id, int rank) {
  use_gpu(rank);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  EXPECT_EQ(nccl.init(&comm, 2, id, rank, &config), ncclInProgress);
  return comm;
}

enum class When { kWhileJoining, kAfterJoining };

// Rank 1 of 2: a process of its own, which runs DISABLED_Victim below. It was killed when this
// returns from end().
class Victim {
 public:
  Victim(const ncclUniqueId& id, When when) : file_(::testing::TempDir() + "nccl_id_XXXXXX") {
    const int file = mkstemp(file_.data());
    EXPECT_EQ(write(file, id.internal, sizeof id.internal), ssize_t{sizeof id.internal});
    close(file);
    const char* const name = when == When::kAfterJoining ? "after" : "joining";
    pid_ = vfork();
    if (pid_ != 0) return;
    execl("/proc/self/exe", "test_real_nccl", "--gtest_also_run_disabled_tests",
          "--gtest_filter=KilledRank.DISABLED_Victim", file_.c_str(), name, nullptr);
    _exit(1);
  }
  Victim(const Victim&) = delete;
  Victim& operator=(const Victim&) = delete;
  ~Victim() {
    end();
    unlink(file_.c_str());
  }

  void end() {
    if (pid_ == 0) return;
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  }

 private:
  std::string file_;
  pid_t pid_ = 0;
};

TEST(KilledRank, DISABLED_Victim) {
  const std::vector<std::string> arguments = ::testing::internal::GetArgvs();
  ASSERT_EQ(arguments.size(), 5U);
  ncclUniqueId id{};
  std::ifstream(arguments[3]).read(id.internal, sizeof id.internal);
  const NcclUnderTest nccl;
  ncclComm_t const comm = init(nccl.functions(), id, 1);
  if (arguments[4] == "after") {
    ASSERT_EQ(finished(nccl.functions(), comm), ncclSuccess);
  }
  raise(SIGKILL);
}

TEST(KilledRank, WhileItJoinsOthersWaitUntilTheyAbort) {
  const NcclUnderTest under_test;
  const NcclFunctions& nccl = under_test.functions();
  ncclUniqueId id{};
  ASSERT_EQ(nccl.unique_id(&id), ncclSuccess);
  ncclComm_t const comm = init(nccl, id, 0);
  Victim(id, When::kWhileJoining).end();
  EXPECT_NE(state_of(nccl, comm), ncclSuccess);
  EXPECT_EQ(nccl.abort(comm), ncclSuccess);
}

TEST(KilledRank, AfterItHasJoinedOthersLearnOfItFromTheNextCallThatMeetsIt) {
  const NcclUnderTest under_test;
  const NcclFunctions& nccl = under_test.functions();
  ncclUniqueId id{};
  ASSERT_EQ(nccl.unique_id(&id), ncclSuccess);
  ncclComm_t const comm = init(nccl, id, 0);
  Victim victim(id, When::kAfterJoining);
  ASSERT_EQ(finished(nccl, comm), ncclSuccess);
  victim.end();
  EXPECT_EQ(state_of(nccl, comm), ncclSuccess);

  ncclComm_t child = nullptr;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  EXPECT_EQ(nccl.split(comm, 0, 0, &child, &config), ncclSuccess);
  EXPECT_EQ(finished(nccl, comm), ncclRemoteError);
  EXPECT_NE(child, nullptr);  // of a split that has failed
  EXPECT_EQ(nccl.abort(child), ncclSuccess);
  EXPECT_EQ(nccl.abort(comm), ncclSuccess);
}

}  // namespace
}  // namespace zerorun::testing::nccl_killed_rank
