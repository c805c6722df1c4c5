// Memory of NCCL's communicators: what is registered, what sums are made in, and a second
// communicator of the same ranks.
#include <nccl.h>

#include "tests/comm/nccl/nccl_test.h"
#include "tests/zero/cuda/transports.h"

namespace zerorun::testing {
namespace {

// Memory that NCCL reads is registered on every rank or on none, and at one place of it.
class RegisteredMemoryTest : public NcclTest {};

// NCCL may not be given registered memory by some ranks and other memory by the rest. Without a
// failure: NCCL_LOCAL_REGISTER=0, or GPUs that copy through the host, where it gives no handle.
TEST_F(RegisteredMemoryTest, MemoryThatOneRankCannotRegisterIsOrdinaryMemoryOnAll) {
  for (const std::string name : {"ncclMemAlloc", "ncclCommRegister", "none"}) {
    fake_.reset();
    fake_.fail(name, 0, ncclUnhandledCudaError);  // on one rank
    fake_.set_local_register(name != "none");
    on_ranks(2, 60s, [&](Communicator& communicator, CudaDevice& device) {
      const Buffer block = *communicator.allocate(1024, Sharing::per_rank);
      communicator.barrier(device.inline_stream(), "all have it").synchronize();
      EXPECT_EQ(fake_.counts()["ncclMemFree"], fake_.counts()["ncclCommRegister"]) << name;
      communicator.barrier(device.inline_stream(), "all have looked").synchronize();
    });
    EXPECT_TRUE(name != "none" || fake_.counts()["ncclCommDeregister"] == 0);
  }
}

// A rank that skips a module holds back the buckets behind it and needs more slots for gradients.
TEST_F(RegisteredMemoryTest, RanksThatTakeDifferentPathsGiveNcclTheSameKind) {
  constexpr int kModules = 6;
  constexpr int64_t kNumel = 256;
  ToyJob job{.config = toy_config(2), .specs = {}, .connect = on(Where::nccl)};
  job.config.zero.reduce_bucket_size = kNumel;
  job.config.zero.overlap_comm = true;
  for (int i = 0; i < kModules; ++i) {
    job.specs.push_back({"w" + std::to_string(i), {kNumel}, "m" + std::to_string(i)});
  }
  fake_.set_devices(2);
  run_engines(job, [](Engine& engine, Communicator& comm) {
    for (int step = 0; step < 2; ++step) {
      for (ParameterId id = kModules; id-- > 0;) {
        if (id == kModules - 1 && comm.rank() == 1) continue;
        give_gradient(engine, id, 0.25F);
      }
      engine.end_micro_step();
      EXPECT_TRUE(engine.step().applied);
    }
  });
}

// Sums that are not what the output gets: in one block of each communicator, whatever reduces.
struct NcclScratchTest : NcclTest {
  static int64_t buckets(const CudaDevice& device) {
    return device.memory_use(MemoryCategory::buckets).peak_bytes;
  }
};

TEST_F(NcclScratchTest, IsAsLargeAsTheLargestReductionAndKept) {
  on_ranks(2, 30s, [&](Communicator& comm, CudaDevice& device) {
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
  fake_.set_delay(2000us);
  on_ranks(2, 60s, [&](Communicator& comm, CudaDevice& device) {
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
      EXPECT_THAT(downloaded(device, view_of(sums.at(i), DType::fp32, kNumel), *streams.at(i)),
                  ::testing::Each(static_cast<float>(kRounds * 2 * (i + 1))));
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

class SecondLaneTest : public NcclTest {};

// Rank 1 begins the reduction after the gather, rank 0 before it: in one lane they would not meet,
// nor in two whose kernels NCCL puts in the order of their launches.
TEST_F(SecondLaneTest, AGatherDoesNotWaitForAReductionThatWaitsForAPeer) {
  fake_.set_implicit_order(false);
  on_ranks(2, 10s, [&](Communicator& comm, CudaDevice& device) {
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

// Two lanes whose streams run at once, as NCCL's kernels may. With a driver before 12.3 NCCL runs
// one after the other, before 2.26 zerorun does.
using LaunchOrderTest = LateCudaTest<200>;

TEST_F(LaunchOrderTest, KernelsOfTwoCommunicatorsAreInOneOrder) {
  const auto run_lanes = [](int rank, const std::shared_ptr<Store>& store) {
    const auto device = std::make_shared<CudaDevice>(rank, 0);
    const auto comm = make_nccl_communicator(options_of_rank(rank, 2, store, 20s, device));
    Communicator& lane = comm->second_lane("gathers");
    const auto reductions = device->make_stream("reductions");
    const auto gathers = device->make_stream("gathers");
    for (int round = 0; round < 20; ++round) {
      comm->barrier(*reductions, "sum");
      lane.barrier(*gathers, "weights");
    }
    reductions->synchronize();
    gathers->synchronize();
  };
  for (const auto& [driver, nccl] :
       {std::pair(13020, 23100), std::pair(12020, 23100), std::pair(13020, 22501)}) {
    SetUp();
    fake_.set_devices(2);
    fake_.set_driver(driver);
    fake_.set_nccl_version(nccl);
    const auto store = make_memory_store();
    run_threads(2, [&](int rank) { run_lanes(rank, store); });
    expect_clean();
  }
}

}  // namespace
}  // namespace zerorun::testing
