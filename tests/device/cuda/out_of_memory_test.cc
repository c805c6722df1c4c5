// When a GPU's memory is used up: what is kept for later goes first, then the allocation fails.

#include "comm/nccl/communicator.h"
#include "tests/device/cuda/fake_cuda_test.h"
#include "tests/error_of.h"
#include "zero/memory_plan.h"
#include "zerorun/engine.h"

namespace zerorun::testing {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

class OutOfMemoryTest : public FakeCudaTest {
 protected:
  // The error of asking for `nbytes` of `category`.
  static std::string error_of(CudaDevice& device, size_t nbytes,
                              MemoryCategory category = MemoryCategory::other) {
    return testing::error_of<DeviceError>([&] { device.allocate(nbytes, category); });
  }
};

// As the engine does that makes a step.
TEST_F(OutOfMemoryTest, AdviceLeavesOutWhatIsInForceAndCountsWhatIsAskedFor) {
  fake_.set_memory(64 * kMiB);
  CudaDevice device(0, 0);
  const auto comm =
      make_nccl_communicator({.device = std::shared_ptr<CudaDevice>(&device, [](auto*) {})});
  Config config;
  config.precision.param_dtype = DType::bf16;
  config.zero.stage = 3;
  config.offload.optimizer.device = OffloadDevice::cpu;
  const auto engine = Engine::create(config, device, *comm, {{"w", {1024, 1024}, "m"}}, {{}});
  const Buffer parameters = device.allocate(20 * kMiB, MemoryCategory::parameters);
  EXPECT_THAT(error_of(device, 100 * kMiB, MemoryCategory::activations),
              AllOf(HasSubstr("100.0 MiB for activations"), HasSubstr("kept for reuse"),
                    EndsWith("Any of these can make room: a smaller train_micro_batch_size_per_gpu "
                             "or recomputation (acts on 100.0 MiB of activations)")));
}

TEST_F(OutOfMemoryTest, AdviceNamesTheNextSettingOfEachAndSaysTogetherOnlyWhereThatIsEnough) {
  struct Case {
    MemorySettings settings;
    std::array<size_t, 3> held;  // MiB of states, gradients and parameters
    size_t asked;                // MiB
    std::string advice;
  };
  const std::string none =
      "No setting makes enough room: use more ranks, a smaller model or a GPU with more memory";
  const std::string states = "zero_optimization.stage 1 on more ranks, or with offload_optimizer ";
  for (const Case& c : std::vector<Case>{
           // 1 MiB of gradients would not make up for 2 MiB.
           {{},
            {5, 1, 0},
            4,
            "Any of these can make room: " + states + "(acts on 5.0 MiB of optimizer)"},
           {{.stage = 0},
            {2, 1, 2},
            4,
            "Any of these can make room: " + states +
                "(acts on 2.0 MiB of optimizer); zero_optimization.stage 2 (acts on 1.0 MiB of "
                "gradients); zero_optimization.stage 3 (acts on 2.0 MiB of parameters)"},
           {{.stage = 2},
            {2, 1, 2},
            4,
            "Any of these can make room: offload_optimizer (acts on 3.0 MiB of optimizer and "
            "gradients); zero_optimization.stage 3 (acts on 2.0 MiB of parameters)"},
           {{.stage = 3, .offload_optimizer = true},
            {2, 1, 2},
            4,
            "Any of these can make room: offload_param (acts on 2.0 MiB of parameters)"},
           {{},
            {3, 0, 2},
            8,
            "No setting frees enough by itself; together: " + states +
                "(acts on 3.0 MiB of optimizer); zero_optimization.stage 3 (acts on 2.0 MiB of "
                "parameters)"},
           {{}, {3, 0, 2}, 9, none},
           {{.stage = 3, .offload_optimizer = true, .offload_param = true}, {3, 0, 2}, 8, none}}) {
    fake_.reset();
    fake_.set_memory(8 * kMiB);
    CudaDevice device(0, 0);
    device.use_memory_adviser(memory_adviser(c.settings));
    std::list<Buffer> held;
    for (const auto& [nbytes, category] : {std::pair(c.held[0], MemoryCategory::optimizer),
                                           std::pair(c.held[1], MemoryCategory::gradients),
                                           std::pair(c.held[2], MemoryCategory::parameters)}) {
      if (nbytes > 0) held.push_back(device.allocate(nbytes * kMiB, category));
    }
    EXPECT_THAT(error_of(device, c.asked * kMiB), EndsWith(c.advice));
  }
}

// Blocks that were freed are kept for others of their size, and other allocators keep theirs.
TEST_F(OutOfMemoryTest, WhatIsKeptIsGivenBackBeforeAnAllocationFails) {
  constexpr size_t kBlock = size_t{1} << 20;
  fake_.set_memory(4 * kBlock);
  CudaDevice device(0, 0);
  void* cached = nullptr;  // by a framework
  ASSERT_TRUE(fake::add_device_memory(&cached, 2 * kBlock));
  int asked = 0;
  device.use_reclaimer([&] {
    ++asked;
    if (cached != nullptr) fake::remove_device_memory(std::exchange(cached, nullptr));
  });
  device.allocate(2 * kBlock, MemoryCategory::other);
  EXPECT_TRUE(device.allocate(2 * kBlock - 1, MemoryCategory::other));
  EXPECT_EQ(asked, 0);  // what the pool kept was enough
  EXPECT_TRUE(device.allocate(4 * kBlock, MemoryCategory::other));
  EXPECT_EQ(asked, 1);
  EXPECT_THROW(device.allocate(4 * kBlock + 1, MemoryCategory::other), DeviceError);
  EXPECT_EQ(asked, 2);
  CudaStream& stream = cuda_stream(device.inline_stream());
  const Buffer most = device.allocate(3 * kBlock, MemoryCategory::other);
  ASSERT_TRUE(fake::add_device_memory(&cached, kBlock));
  EXPECT_TRUE(device.scratch(stream, kBlock));
  EXPECT_EQ(asked, 3);
}

// Freed blocks may still be in use by what was submitted before.
TEST_F(OutOfMemoryTest, WhatIsKeptIsGivenBackAfterTheWorkOnIt) {
  constexpr size_t kBlock = size_t{1} << 20;
  fake_.set_memory(kBlock);
  fake_.set_delay(std::chrono::microseconds(5000));
  CudaDevice device(0, 0);
  for (int round = 0; round < 10; ++round) {
    {
      const Buffer used = device.allocate(kBlock, MemoryCategory::other);
      const TensorView view = view_of(used, DType::fp32, kBlock / sizeof(float));
      device.fill(device.inline_stream(), view, 1.0F);  // AddressSanitizer sees it come too late,
    }
    const Buffer next = device.allocate(kBlock - 512, MemoryCategory::other);  // and so does this
    const TensorView view = view_of(next, DType::fp32, (kBlock - 512) / sizeof(float));
    const auto side = device.make_stream("side");
    device.fill(*side, view, 2.0F);
    std::vector<float> seen(static_cast<size_t>(view.numel));
    device.download(*side, view, seen.data());
    side->synchronize();
    device.inline_stream().synchronize();
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 2.0F), view.numel);
  }
}

TEST_F(OutOfMemoryTest, MemoryToCommunicateIsWithinTheLimit) {
  const auto device = std::make_shared<CudaDevice>(0, 1000);
  const auto communicator = make_nccl_communicator({.device = device});
  EXPECT_TRUE(communicator->allocate(900, Sharing::per_rank));
  EXPECT_THAT(
      testing::error_of<DeviceError>([&] { communicator->allocate(1001, Sharing::per_rank); }),
      AllOf(HasSubstr("communication"), HasSubstr("of the limit of 1000 B")));
}

}  // namespace
}  // namespace zerorun::testing
