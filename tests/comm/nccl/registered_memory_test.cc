// Memory that NCCL reads is registered on every rank or on none, and at one place of it.
#include <nccl.h>

#include "tests/comm/nccl/nccl_test.h"
#include "tests/zero/cuda/transports.h"

namespace zerorun {
namespace {

class RegisteredMemoryTest : public testing::NcclTest {};

// NCCL may not be given registered memory by some ranks and other memory by the rest.
TEST_F(RegisteredMemoryTest, MemoryThatOneRankCannotRegisterIsOrdinaryMemoryOnAll) {
  for (const char* name : {"ncclMemAlloc", "ncclCommRegister"}) {
    fake_.reset();
    fake_.fail(name, 0, ncclUnhandledCudaError);  // on one rank
    on_ranks(2, std::chrono::seconds(10), [&](Communicator& communicator, CudaDevice& device) {
      const Buffer block = *communicator.allocate(1024, Sharing::per_rank);
      communicator.barrier(device.inline_stream(), "all have it").synchronize();
      EXPECT_EQ(fake_.counts()["ncclMemFree"], fake_.counts()["ncclCommRegister"]) << name;
      communicator.barrier(device.inline_stream(), "all have looked").synchronize();
    });
  }
}

// NCCL_LOCAL_REGISTER=0, or GPUs that copy through the host: it succeeds without a handle.
TEST_F(RegisteredMemoryTest, MemoryForWhichNcclHasNoUseIsOrdinaryMemory) {
  fake_.set_local_register(false);
  on_ranks(2, std::chrono::seconds(60), [&](Communicator& communicator, CudaDevice& device) {
    const Buffer block = *communicator.allocate(1024, Sharing::per_rank);
    communicator.barrier(device.inline_stream(), "all have it").synchronize();
    EXPECT_EQ(fake_.counts()["ncclMemFree"], fake_.counts()["ncclCommRegister"]);
    EXPECT_EQ(fake_.counts()["ncclCommDeregister"], 0);
    communicator.barrier(device.inline_stream(), "all have looked").synchronize();
  });
}

// A rank that skips a module holds the buckets behind it back, and needs more slots for gradients
// than the others.
TEST_F(RegisteredMemoryTest, RanksThatTakeDifferentPathsGiveNcclTheSameKind) {
  constexpr int kModules = 6;
  constexpr int64_t kNumel = 256;
  testing::ToyJob job{.specs = {}, .connect = testing::on(testing::Where::nccl)};
  job.config.zero.stage = 2;
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
        testing::give_gradient(engine, id, 0.25F);
      }
      engine.end_micro_step();
      EXPECT_TRUE(engine.step().applied);
    }
  });
}

}  // namespace
}  // namespace zerorun
