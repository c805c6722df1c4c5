// The states of NCCL's communicators and what its functions return, as far as zerorun relies on
// them. The same tests run on the real NCCL and on the fake one.
#include <cuda_runtime.h>

#include "tests/harness.h"
#include "tests/real_nccl/nccl_under_test.h"

namespace zerorun::testing::nccl_states {
namespace {

constexpr size_t kBytes = 1 << 20;

// What a call of a communicator that does not block returns may already be done.
bool accepted(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

// One rank of a test.
class Rank {
 public:
  Rank(const NcclFunctions& nccl, const ncclUniqueId& id, int number, int ranks,
       std::barrier<>& barrier)
      : nccl_(nccl), id_(id), number_(number), ranks_(ranks), barrier_(barrier) {
    use_gpu(number);
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  ~Rank() { cudaStreamDestroy(stream_); }

  int number() const { return number_; }
  bool first() const { return number_ == 0; }
  void meet() { barrier_.arrive_and_wait(); }

  ncclResult_t init(ncclComm_t* comm) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return nccl_.init(comm, ranks_, id_, number_, &config);
  }
  ncclResult_t split(ncclComm_t comm, ncclComm_t* child) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    return nccl_.split(comm, 0, number_, child, &config);
  }
  ncclResult_t state(ncclComm_t comm) { return state_of(nccl_, comm); }
  ncclResult_t finish(ncclComm_t comm) { return finished(nccl_, comm); }
  // A communicator of all ranks that is ready.
  ncclComm_t join() {
    ncclComm_t comm = nullptr;
    EXPECT_TRUE(accepted(init(&comm)));
    EXPECT_EQ(finish(comm), ncclSuccess);
    return comm;
  }
  // And one that blocks, as zerorun makes it.
  ncclComm_t join_blocking(ncclComm_t parent) {
    ncclComm_t child = nullptr;
    split(parent, &child);
    EXPECT_EQ(finish(parent), ncclSuccess);
    return child;
  }
  void leave(ncclComm_t comm) {
    EXPECT_TRUE(accepted(nccl_.finalize(comm)));
    EXPECT_EQ(finish(comm), ncclSuccess);
    EXPECT_EQ(nccl_.destroy(comm), ncclSuccess);
  }
  ncclResult_t sum(ncclComm_t comm, void* data) {
    return nccl_.all_reduce(data, data, 100, ncclFloat32, ncclSum, comm, stream_);
  }

  void drain() { cudaStreamSynchronize(stream_); }

  const NcclFunctions& nccl() const { return nccl_; }

 private:
  const NcclFunctions& nccl_;
  const ncclUniqueId& id_;
  const int number_;
  const int ranks_;
  std::barrier<>& barrier_;
  cudaStream_t stream_ = nullptr;
};

struct NcclStates : ::testing::TestWithParam<int> {
  void on_ranks(const std::function<void(Rank&)>& body) {
    const int ranks = GetParam();
    NcclUnderTest nccl;
    ncclUniqueId id{};
    ASSERT_EQ(nccl.functions().unique_id(&id), ncclSuccess);
    std::barrier<> barrier(ranks);
    run_threads(ranks, [&](int number) {
      Rank rank(nccl.functions(), id, number, ranks, barrier);
      body(rank);
    });
  }
};

class NcclStatesOfMany : public NcclStates {};

TEST_P(NcclStatesOfMany, InitGivesAHandleThatIsInProgressUntilAllRanksHaveJoined) {
  on_ranks([](Rank& rank) {
    if (!rank.first()) rank.meet();
    ncclComm_t comm = nullptr;
    EXPECT_TRUE(accepted(rank.init(&comm)));
    ASSERT_NE(comm, nullptr);
    if (rank.first()) {
      for (int i = 0; i < 1000; ++i) ASSERT_EQ(rank.state(comm), ncclInProgress);
      rank.meet();
    }
    EXPECT_EQ(rank.finish(comm), ncclSuccess);
    rank.leave(comm);
  });
}

// Calls that come too early, on a rank that waits for others and is aborted, and what they leave.
TEST_P(NcclStates, CallsBeforeItIsReadyAreRefused) {
  using Call = std::function<ncclResult_t(Rank&, ncclComm_t)>;
  const Call sum = [](Rank& rank, ncclComm_t comm) {
    void* data = nullptr;
    EXPECT_EQ(rank.nccl().allocate(&data, kBytes), ncclSuccess);
    const ncclResult_t result = rank.sum(comm, data);
    EXPECT_EQ(rank.nccl().free(data), ncclSuccess);
    return result;
  };
  const Call split = [](Rank& rank, ncclComm_t comm) {
    ncclComm_t child = nullptr;
    const ncclResult_t result = rank.split(comm, &child);
    EXPECT_EQ(child, nullptr);
    return result;
  };
  const Call finalize = [](Rank& rank, ncclComm_t comm) { return rank.nccl().finalize(comm); };
  for (const auto& [call, state] :
       {std::pair(sum, ncclInvalidArgument), std::pair(split, ncclInProgress),
        std::pair(finalize, ncclInvalidArgument)}) {
    on_ranks([&, call = call, state = state](Rank& rank) {
      if (!rank.first()) return;
      ncclComm_t comm = nullptr;
      EXPECT_EQ(rank.init(&comm), ncclInProgress);
      EXPECT_EQ(call(rank, comm), ncclInvalidArgument);
      EXPECT_EQ(rank.state(comm), state);
      EXPECT_EQ(rank.nccl().abort(comm), ncclSuccess);
    });
  }
}

TEST_P(NcclStatesOfMany, ASplitReturnsSuccessBeforeThereIsAHandle) {
  on_ranks([](Rank& rank) {
    ncclComm_t const parent = rank.join();
    if (!rank.first()) rank.meet();
    ncclComm_t child = nullptr;
    EXPECT_EQ(rank.split(parent, &child), ncclSuccess);
    if (rank.first()) {
      for (int i = 0; i < 1000; ++i) ASSERT_EQ(rank.state(parent), ncclInProgress);
      EXPECT_EQ(child, nullptr);
      rank.meet();
    }
    EXPECT_EQ(rank.finish(parent), ncclSuccess);
    ASSERT_NE(child, nullptr);
    EXPECT_EQ(rank.state(child), ncclSuccess);
    rank.leave(parent);  // a child does not need its parent
    rank.meet();
    rank.leave(child);
  });
}

// NCCL's thread writes it before the abort of the parent is done: it has to be aborted as well.
TEST_P(NcclStates, ASplitThatIsAbortedLeavesAHandle) {
  on_ranks([](Rank& rank) {
    ncclComm_t const parent = rank.join();
    rank.meet();
    if (rank.first()) {
      ncclComm_t child = nullptr;
      EXPECT_EQ(rank.split(parent, &child), ncclSuccess);
      EXPECT_EQ(child, nullptr);
      EXPECT_EQ(rank.nccl().abort(parent), ncclSuccess);
      ASSERT_NE(child, nullptr);
      EXPECT_EQ(rank.nccl().abort(child), ncclSuccess);
    }
    rank.meet();
    if (rank.first()) return;
    EXPECT_EQ(rank.nccl().abort(parent), ncclSuccess);
  });
}

TEST_P(NcclStates, OnlyABlockingCommunicatorHasDoneWhatItReturnsSuccessFor) {
  on_ranks([](Rank& rank) {
    ncclComm_t const comm = rank.join();
    ncclComm_t const blocking = rank.join_blocking(comm);
    ASSERT_NE(blocking, nullptr);
    void* data = nullptr;
    EXPECT_EQ(rank.nccl().allocate(&data, kBytes), ncclSuccess);
    EXPECT_EQ(rank.sum(blocking, data), ncclSuccess);
    EXPECT_EQ(rank.state(blocking), ncclSuccess);
    rank.drain();
    EXPECT_TRUE(accepted(rank.nccl().finalize(comm)));
    EXPECT_EQ(rank.finish(comm), ncclSuccess);
    EXPECT_EQ(rank.nccl().finalize(blocking), ncclSuccess);
    EXPECT_EQ(rank.state(blocking), ncclSuccess);
    rank.meet();
    EXPECT_EQ(rank.nccl().destroy(comm), ncclSuccess);
    EXPECT_EQ(rank.nccl().destroy(blocking), ncclSuccess);
    EXPECT_EQ(rank.nccl().free(data), ncclSuccess);
  });
}

TEST_P(NcclStates, RegistrationIsByHandle) {
  on_ranks([](Rank& rank) {
    ncclComm_t const parent = rank.join();
    ncclComm_t const comm = rank.join_blocking(parent);
    ASSERT_NE(comm, nullptr);
    const NcclFunctions& nccl = rank.nccl();
    void* data = nullptr;
    EXPECT_EQ(nccl.allocate(&data, kBytes), ncclSuccess);
    void* handle = nullptr;
    EXPECT_EQ(nccl.register_memory(comm, data, kBytes, &handle), ncclSuccess);
    EXPECT_NE(handle, nullptr);
    EXPECT_EQ(nccl.deregister_memory(parent, handle), ncclInvalidUsage);  // it is the child's
    EXPECT_EQ(nccl.deregister_memory(comm, handle), ncclSuccess);
    EXPECT_EQ(nccl.deregister_memory(comm, handle), ncclInvalidUsage);
    EXPECT_EQ(rank.state(comm), ncclSuccess);
    EXPECT_EQ(nccl.free(data), ncclSuccess);
    rank.meet();
    rank.leave(parent);
    rank.leave(comm);
  });
}

TEST_P(NcclStates, AGroupReturnsTheErrorOfACallAndDoesNothing) {
  on_ranks([](Rank& rank) {
    ncclComm_t const comm = rank.join();
    const NcclFunctions& nccl = rank.nccl();
    void* data = nullptr;
    EXPECT_EQ(nccl.allocate(&data, kBytes), ncclSuccess);
    EXPECT_EQ(nccl.group_end(), ncclInvalidUsage);
    EXPECT_EQ(nccl.group_start(), ncclSuccess);
    EXPECT_EQ(nccl.group_end(), ncclSuccess);
    EXPECT_EQ(nccl.group_start(), ncclSuccess);
    EXPECT_EQ(rank.sum(nullptr, data), ncclInvalidArgument);
    EXPECT_EQ(nccl.group_end(), ncclInvalidArgument);
    EXPECT_EQ(rank.state(comm), ncclSuccess);
    rank.meet();
    rank.leave(comm);
    EXPECT_EQ(nccl.free(data), ncclSuccess);
  });
}

INSTANTIATE_TEST_SUITE_P(Of, NcclStates, ::testing::Values(2), number_of_ranks);
INSTANTIATE_TEST_SUITE_P(Of, NcclStatesOfMany, ::testing::Values(2, 4), number_of_ranks);

}  // namespace
}  // namespace zerorun::testing::nccl_states
