// Sums that are not what the output gets: in one block of each communicator, whatever reduces.

#include "tests/comm/nccl/nccl_test.h"
#include "tests/common.h"
#include "zerorun/error.h"

namespace zerorun {
namespace {

class NcclScratchTest : public testing::NcclTest {
 protected:
  static int64_t buckets(const CudaDevice& device) {
    return device.memory_use(MemoryCategory::buckets).peak_bytes;
  }
};

TEST_F(NcclScratchTest, IsAsLargeAsTheLargestReductionAndKept) {
  on_ranks(2, std::chrono::seconds(30), [&](Communicator& comm, CudaDevice& device) {
    constexpr int64_t kMax = 1 << 14;
    const Buffer in = device.allocate(kMax * sizeof(float), MemoryCategory::other);
    const Buffer out = device.allocate(kMax * sizeof(float), MemoryCategory::other);
    Stream& stream = device.inline_stream();
    const auto reduce = [&](int64_t numel, DType dtype, Output output) {
      comm.all_reduce(view_of(in, dtype, numel), view_of(out, DType::fp32, numel), ReduceOp::sum,
                      output, stream, "sum");
    };
    reduce(kMax, DType::fp32, Output::overwrite);
    EXPECT_EQ(buckets(device), 0);  // the sum is what the output gets
    for (const int64_t numel : {kMax / 4, kMax, kMax / 2}) {
      reduce(numel, DType::bf16, Output::accumulate);
      reduce(numel, DType::bf16, Output::overwrite);
    }
    stream.synchronize();
    EXPECT_EQ(buckets(device), kMax * 2);
    comm.barrier(stream, "all have reduced").synchronize();
    const auto before = fake_.counts();
    comm.barrier(stream, "all have looked").synchronize();
    reduce(kMax / 8, DType::bf16, Output::accumulate);
    comm.barrier(stream, "all have reduced again").synchronize();
    EXPECT_EQ(fake_.counts()["cudaMallocFromPoolAsync"], before.at("cudaMallocFromPoolAsync"));
    EXPECT_EQ(buckets(device), kMax * 2);
  });
}

// Streams start their work late, each by another time.
TEST_F(NcclScratchTest, IsUsedByOneStreamAfterTheOther) {
  fake_.set_delay(std::chrono::microseconds(2000));
  on_ranks(2, std::chrono::seconds(60), [&](Communicator& comm, CudaDevice& device) {
    constexpr int64_t kNumel = 1 << 12;
    constexpr int kStreams = 3;
    constexpr int kRounds = 8;
    std::array<std::unique_ptr<Stream>, kStreams> streams;
    std::array<Buffer, kStreams> ins;
    std::array<Buffer, kStreams> sums;
    for (int i = 0; i < kStreams; ++i) {
      const auto at = static_cast<size_t>(i);
      streams.at(at) = device.make_stream("side");
      ins.at(at) = device.allocate(kNumel * 2, MemoryCategory::other);
      sums.at(at) = device.allocate(kNumel * sizeof(float), MemoryCategory::other);
      device.fill(*streams.at(at), view_of(ins.at(at), DType::bf16, kNumel),
                  static_cast<float>(i + 1));
      device.fill(*streams.at(at), view_of(sums.at(at), DType::fp32, kNumel), 0.0F);
    }
    for (int round = 0; round < kRounds; ++round) {
      for (size_t i = 0; i < kStreams; ++i) {
        comm.all_reduce(view_of(ins.at(i), DType::bf16, kNumel),
                        view_of(sums.at(i), DType::fp32, kNumel), ReduceOp::sum, Output::accumulate,
                        *streams.at(i), "sum");
      }
    }
    for (size_t i = 0; i < kStreams; ++i) {
      std::vector<float> seen(kNumel);
      device.download(*streams.at(i), view_of(sums.at(i), DType::fp32, kNumel), seen.data());
      streams.at(i)->synchronize();
      const auto expected = static_cast<float>(kRounds * 2 * (i + 1));
      EXPECT_EQ(std::count(seen.begin(), seen.end(), expected), kNumel);
    }
    EXPECT_EQ(buckets(device), kNumel * 2);
  });
}

TEST_F(NcclScratchTest, IsWithinTheLimit) {
  const auto device = std::make_shared<CudaDevice>(0, 10'000);
  const auto comm = make_nccl_communicator({.device = device});
  const Buffer in = device->allocate(2048, MemoryCategory::other);
  const Buffer out = device->allocate(4096, MemoryCategory::other);
  const auto reduce = [&] {
    comm->all_reduce(view_of(in, DType::bf16, 1024), view_of(out, DType::fp32, 1024), ReduceOp::sum,
                     Output::accumulate, device->inline_stream(), "sum");
  };
  {
    const Buffer most = device->allocate(2000, MemoryCategory::other);
    EXPECT_THROW(reduce(), DeviceError);
  }
  reduce();
  EXPECT_THROW(device->scratch(cuda_stream(device->inline_stream()), 2000), DeviceError);
  {
    const Buffer words = device->scratch(cuda_stream(device->inline_stream()), 1000);
    EXPECT_THROW(device->allocate(1000, MemoryCategory::other), DeviceError);
  }
  EXPECT_TRUE(device->allocate(1000, MemoryCategory::other));
}

}  // namespace
}  // namespace zerorun
