// A second communicator of the same ranks, whose calls do not wait for the first one's.

#include "tests/comm/nccl/nccl_test.h"
#include "tests/common.h"

namespace zerorun {
namespace {

class SecondLaneTest : public testing::NcclTest {};

// Rank 1 begins the reduction after the gather, rank 0 before it: in one lane they would not meet.
TEST_F(SecondLaneTest, AGatherDoesNotWaitForAReductionThatWaitsForAPeer) {
  on_ranks(2, std::chrono::seconds(10), [&](Communicator& comm, CudaDevice& device) {
    constexpr int64_t kNumel = 64;
    Communicator& lane = comm.second_lane("gathers");
    ASSERT_NE(&lane, &comm);
    EXPECT_EQ(&comm.second_lane("gathers"), &lane);
    EXPECT_EQ(lane.rank(), comm.rank());
    const Buffer memory = device.allocate(4 * kNumel * sizeof(float), MemoryCategory::other);
    const TensorView all = view_of(memory, DType::fp32, 4 * kNumel);
    device.fill(device.inline_stream(), all, 1.0F);
    device.inline_stream().synchronize();
    const auto reductions = device.make_stream("reductions");
    const auto gathers = device.make_stream("gathers");
    const auto reduce = [&] {
      const TensorView sum = all.slice(0, kNumel);
      comm.all_reduce(sum, sum, ReduceOp::sum, Output::overwrite, *reductions, "sum");
    };
    if (comm.rank() == 0) reduce();
    const CommStats before = comm.stats();
    lane.all_gather(all.slice(kNumel, kNumel), all.slice(2 * kNumel, 2 * kNumel), Sync::collective,
                    *gathers, "weights");
    gathers->synchronize();
    EXPECT_EQ(comm.stats()[Collective::all_gather].calls, before[Collective::all_gather].calls + 1);
    if (comm.rank() == 1) reduce();
    reductions->synchronize();
  });
}

}  // namespace
}  // namespace zerorun
