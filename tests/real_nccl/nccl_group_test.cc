// zerorun's groups on the real NCCL: how they begin and end. Kernels do nothing, so no sums.

#include "comm/nccl/group.h"
#include "device/cuda/runtime/cuda_stream_impl.h"
#include "tests/harness.h"
#include "tests/real_nccl/nccl_under_test.h"

namespace zerorun::testing::nccl_real_group {
namespace {

struct RealNcclGroup : ::testing::TestWithParam<int> {
  GroupOptions options_of(int rank, std::chrono::milliseconds timeout = 60s) {
    return GroupOptions(options_of_rank(rank, GetParam(), store_, timeout));
  }

  const NcclUnderTest nccl_;
  const std::shared_ptr<Store> store_ = make_memory_store();
};

TEST_P(RealNcclGroup, JoinsRegistersCallsAndLeaves) {
  run_threads(GetParam(), [&](int rank) {
    use_gpu(rank);
    const auto group = std::make_shared<NcclGroup>(options_of(rank), rank);
    const Buffer buffer = group->allocate(1 << 20, group);
    ASSERT_NE(buffer.data(), nullptr);
    const auto events = std::make_shared<EventPool>(rank);
    CudaStreamImpl stream(rank, CudaStreamImpl::Priority::low, events,
                          std::make_shared<HostFlags>(rank));
    group->run({"a sum"}, stream, [&](const NcclFunctions& nccl, ncclComm_t comm) {
      return nccl.all_reduce(buffer.data(), buffer.data(), 100, ncclFloat32, ncclSum, comm,
                             stream.handle());
    });
    EXPECT_EQ(group->error(), "");
  });
}

TEST_P(RealNcclGroup, AnAbortReachesAllRanks) {
  std::barrier<> joined(GetParam());
  run_threads(GetParam(), [&](int rank) {
    use_gpu(rank);
    const GroupOptions options = options_of(rank);
    NcclGroup group(options, rank);
    const auto membership =
        options.job->join({.set_error = [&](std::string_view error) { group.set_error(error); },
                           .error = [&] { return group.error(); }});
    joined.arrive_and_wait();
    if (rank == 0) options.job->abort(rank, "for a test");
    joined.arrive_and_wait();
    EXPECT_THAT(group.error(), HasSubstr("rank 0 aborted the job: for a test"));
  });
}

INSTANTIATE_TEST_SUITE_P(Of, RealNcclGroup, ::testing::Values(2, 4), number_of_ranks);

}  // namespace
}  // namespace zerorun::testing::nccl_real_group
