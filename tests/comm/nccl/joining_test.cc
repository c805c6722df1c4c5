// Ranks that join through NCCL, whose first communicator does not block: each of its calls is done
// later, by a thread of NCCL's, which stores the handle of the second one whenever it gets there.
#include <nccl.h>

#include "tests/comm/nccl/nccl_test.h"

namespace zerorun::testing::nccl_joining {
namespace {

constexpr std::chrono::seconds kDeadline{60};  // which no test meets

class NcclJoiningTest : public NcclTest {
 protected:
  // Each rank's error while it joins; empty: none.
  std::vector<std::string> errors_of_joining(int ranks) {
    fake_.set_devices(ranks);
    const auto store = make_memory_store();
    std::vector<std::string> errors(static_cast<size_t>(ranks));
    run_threads(ranks, [&](int rank) {
      CommunicatorOptions options = options_of_rank(rank, ranks, store, kDeadline);
      options.device = std::make_shared<CudaDevice>(rank, 0);
      errors[static_cast<size_t>(rank)] =
          error_of<CommError>([&] { make_nccl_communicator(options); });
    });
    return errors;
  }
};

// NCCL stores a handle all the same, of what has to be ended.
TEST_F(NcclJoiningTest, ASplitThatFailsLaterIsAnError) {
  fake_.fail("(NCCL's thread splits)", 0, ncclSystemError);
  EXPECT_THAT(errors_of_joining(2),
              Contains(AllOf(HasSubstr("ncclCommSplit"), HasSubstr("failed: unhandled"))));
}

// NCCL's thread waits for it, and stores a handle when the communicator is aborted.
TEST_F(NcclJoiningTest, ARankThatCannotSplitEndsTheSplitOfItsPeers) {
  fake_.fail("ncclCommSplit", 0, ncclSystemError);
  const std::vector<std::string> errors = errors_of_joining(3);
  EXPECT_THAT(errors,
              ::testing::Each(AllOf(HasSubstr("ncclCommSplit"), HasSubstr("failed: unhandled"))));
}

TEST_F(NcclJoiningTest, TheFirstCommunicatorEndsInOrder) {
  for (const char* name : {"ncclCommFinalize", "ncclCommDestroy"}) {
    fake_.reset();
    fake_.fail(name, 0, ncclSystemError);
    EXPECT_THAT(errors_of_joining(2), Contains(HasSubstr("failed: unhandled"))) << name;
  }
}

// What ncclCommAbort frees, ncclCommFinalize still uses in another thread.
TEST_F(NcclJoiningTest, ARankThatLeavesFinalizesWhenItsCallsAreDone) {
  std::barrier both(2);
  on_ranks(2, std::chrono::milliseconds(300), [&](Communicator& world, CudaDevice& device) {
    world.barrier(device.inline_stream(), "start").synchronize();
    if (world.rank() == 0) {
      world.barrier(device.inline_stream(), "to which rank 1 does not come");
    } else {
      while (fake_.counts()["ncclCommAbort"] == 0) std::this_thread::yield();
    }
  });
}

}  // namespace
}  // namespace zerorun::testing::nccl_joining
