// Freed memory that a device keeps: counted, within the limit, and no more than steps use.
#include "tests/zero/cuda/transports.h"
#include "zero/memory_plan.h"

namespace zerorun::testing {
namespace {

struct KeptMemoryTest : FakeCudaTest {
  // Asks for all of them at once.
  static void use(CudaDevice& device, const std::vector<size_t>& sizes) {
    std::vector<Buffer> buffers;
    for (const size_t nbytes : sizes) {
      buffers.push_back(device.allocate(nbytes, MemoryCategory::other));
    }
  }
  static int64_t kept(const CudaDevice& device) {
    return device.memory_use(MemoryCategory::kept).live_bytes;
  }
  size_t held() const { return fake_.memory() - fake_.free_memory(); }
  int count(const char* name) const { return fake_.counts()[name]; }
};

TEST_F(KeptMemoryTest, IsCountedUntilItIsUsedAgain) {
  CudaDevice device(0, 0);
  use(device, {600, 200});
  EXPECT_EQ(kept(device), 800);
  {
    const Buffer again = device.allocate(600, MemoryCategory::buckets);
    EXPECT_EQ(kept(device), 200);
    EXPECT_EQ(device.memory_use(MemoryCategory::buckets).live_bytes, 600);
  }
  EXPECT_EQ(kept(device), 800);
  EXPECT_EQ(held(), 800U);
}

TEST_F(KeptMemoryTest, GoesAsFarAsTheLimitNeedsTheLongestKeptFirst) {
  CudaDevice device(0, 1000);
  use(device, {300});
  use(device, {400});
  const Buffer more = device.allocate(500, MemoryCategory::other);
  EXPECT_EQ(kept(device), 400);
  EXPECT_EQ(held(), 900U);
  EXPECT_TRUE(device.allocate(400, MemoryCategory::other));  // the same block
  EXPECT_EQ(count("cudaMallocFromPoolAsync"), 3);
  EXPECT_ERROR_OF(DeviceError, device.allocate(600, MemoryCategory::other),
                  "free of the limit of 1000 B");
}

std::shared_ptr<Communicator> join_alone(const std::shared_ptr<CudaDevice>& device) {
  CommunicatorOptions options{.device = device};
  options.store = make_memory_store();
  return make_nccl_communicator(options);
}

// NCCL allocates by itself what it registers.
TEST_F(KeptMemoryTest, MakesRoomForCommunicationWithinTheLimit) {
  const auto device = std::make_shared<CudaDevice>(0, 1000);
  const auto communicator = join_alone(device);
  use(*device, {800});
  const auto block = communicator->allocate(900, Sharing::per_rank);
  EXPECT_EQ(kept(*device), 0);
  EXPECT_LE(held(), 1000U);
}

// It would be lost silently: peers then have ordinary memory as well.
TEST_F(KeptMemoryTest, MakesRoomForRegisteredMemoryWhereTheGpuIsFull) {
  fake_.set_memory(1000);
  const auto device = std::make_shared<CudaDevice>(0, 0);
  const auto communicator = join_alone(device);
  use(*device, {800});
  const auto block = communicator->allocate(900, Sharing::per_rank);
  EXPECT_EQ(count("ncclCommRegister"), 1);
  EXPECT_EQ(kept(*device), 0);
}

TEST_F(KeptMemoryTest, GoesWhenAWholeStepDidNotUseIt) {
  CudaDevice device(0, 0);
  const auto step = [&](const std::vector<size_t>& sizes) {
    use(device, sizes);
    device.trim_unused();
  };
  step({500, 100, 100, 100});
  step({500, 100, 100, 100});
  EXPECT_EQ(held(), 800U);
  use(device, {700, 100});
  EXPECT_EQ(held(), 1500U);  // the step before used all the rest
  device.trim_unused();
  EXPECT_EQ(held(), 800U);
  EXPECT_EQ(kept(device), 800);
}

TEST_F(KeptMemoryTest, StepsThatAskForTheSameCallCudaForNothing) {
  CudaDevice device(0, 0);
  const auto step = [&] {
    use(device, {500, 100});
    use(device, {300, 100, 100});
    device.trim_unused();
  };
  step();
  step();
  const auto before = fake_.counts();
  for (int again = 0; again < 5; ++again) step();
  EXPECT_EQ(fake_.counts(), before);
}

TEST_F(KeptMemoryTest, GoesAfterTheWorkOnIt) {
  fake_.set_delay(5000us);
  CudaDevice device(0, 0);
  for (int round = 0; round < 5; ++round) {
    constexpr int64_t kNumel = 1 << 12;
    {
      const Buffer used = device.allocate(kNumel * sizeof(float), MemoryCategory::other);
      device.trim_unused();
      const TensorView view = view_of(used, DType::fp32, kNumel);
      device.fill(device.inline_stream(), view, 1.0F);  // AddressSanitizer sees it come too late
    }
    device.trim_unused();
    device.trim_unused();
    EXPECT_EQ(held(), 0U);
  }
}

// Bytes that two ranks hold at most after a step, within a limit of each.
struct Held {
  int64_t device = 0;
  int64_t buckets = 0;  // at any time
};
Held most_held(const Config& config, const std::vector<ParameterSpec>& specs, int64_t limit) {
  constexpr int kRanks = 2;
  fake::FakeCuda::instance().set_devices(kRanks);
  std::array<Held, kRanks> held{};
  const auto connect = [limit](CommunicatorOptions& options) {
    options.device = std::make_shared<CudaDevice>(options.rank, static_cast<size_t>(limit));
    return make_nccl_communicator(options);
  };
  run_devices({.config = config, .connect = connect}, [&](Device& device, Communicator& comm) {
    const auto engine = Engine::create(config, device, comm, specs, {ParameterGroup{}});
    for (const StateInterval& part : engine->states().state_intervals()) {
      device.fill(device.inline_stream(), part.master, 0.5F);
    }
    engine->states().refresh_from_masters();
    for (int step = 0; step < 3; ++step) {
      do {
        for (const ParameterId id : parameters_of(*engine)) {
          with_module(*engine, spec_of(*engine, id).module,
                      [&] { give_gradient(*engine, id, 0.25F); });
        }
      } while (!engine->end_micro_step());
      EXPECT_TRUE(engine->step().applied);
    }
    Held& mine = held.at(static_cast<size_t>(comm.rank()));
    mine.buckets = device.memory_use(MemoryCategory::buckets).peak_bytes;
    for (const auto category :
         {MemoryCategory::parameters, MemoryCategory::gradients, MemoryCategory::optimizer,
          MemoryCategory::buckets, MemoryCategory::other, MemoryCategory::kept}) {
      mine.device += device.memory_use(category).live_bytes;
    }
  });
  return {std::max(held[0].device, held[1].device), std::max(held[0].buckets, held[1].buckets)};
}

// Words of the communicator, and what norms are summed in, are not in the plan.
constexpr int64_t kOther = 4096;

std::vector<ParameterSpec> three_modules() {
  return {
      {"a.weight", {96, 1024}, "a"}, {"b.weight", {64, 1024}, "b"}, {"c.weight", {48, 1024}, "c"}};
}

// Full parameters of modules of different sizes, each in memory of its own size: what is kept of it
// takes nothing from what the plan says is enough.
TEST_F(KeptMemoryTest, LeavesWhatThePlanNeedsWithinTheLimit) {
  Config config = gathering_config(3);
  config.zero.prefetch_bucket_size = 0;
  const std::vector<ParameterSpec> specs = three_modules();
  const int64_t limit = plan_memory(config, specs, {2, 2}).device() + kOther;
  EXPECT_GT(most_held(config, specs, 0).device, limit);
  EXPECT_LE(most_held(config, specs, limit).device, limit);
}

// The buffer that NCCL sums in is a part of the plan, and all of it that the GPU needs.
TEST_F(KeptMemoryTest, LeavesWhatAccumulationNeedsWithinTheLimit) {
  for (const auto& [comm_dtype, accumulation, stage] :
       each(std::array{DType::bf16, DType::fp32}, std::array{1, 2}, kStages)) {
    SCOPED_TRACE(
        fmt::format("{} accumulation {} stage {}", name_of(comm_dtype), accumulation, stage));
    Config config = toy_config(stage, DType::bf16, accumulation);
    config.zero.param_persistence_threshold = 0;
    config.zero.reduce_bucket_size = 100'000;
    config.precision.communication_dtype = comm_dtype;
    const std::vector<ParameterSpec> specs = three_modules();
    const MemoryPlan plan = plan_memory(config, specs, {2, 2});
    const int64_t limit = plan.device() + kOther;
    fake_.reset();
    fake_.set_memory(2 * static_cast<size_t>(limit));
    const Held held = most_held(config, specs, limit);
    EXPECT_LE(held.device, limit);
    const auto planned = static_cast<double>(plan.buckets + plan.gathered);
    EXPECT_NEAR(static_cast<double>(held.buckets), planned, 0.03 * planned);
  }
}

// When a GPU's memory is used up: what is kept for later goes first, then the allocation fails.
constexpr size_t kMiB = size_t{1} << 20;

struct OutOfMemoryTest : FakeCudaTest {
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
  EXPECT_THAT(
      error_of(device, 100 * kMiB, MemoryCategory::activations),
      HasAll("100.0 MiB for activations", "kept for reuse",
             EndsWith("Any of these can make room: a smaller train_micro_batch_size_per_gpu "
                      "or recomputation (acts on 100.0 MiB of activations)")));
}

TEST_F(OutOfMemoryTest, AdviceNamesTheNextSettingOfEachAndSaysTogetherOnlyWhereThatIsEnough) {
  struct Need {
    MemorySettings settings;
    std::array<size_t, 3> held;  // MiB of states, gradients and parameters
    size_t asked;                // MiB
  };
  const std::string none =
      "No setting makes enough room: use more ranks, a smaller model or a GPU with more memory";
  const std::string states = "zero_optimization.stage 1 on more ranks, or with offload_optimizer ";
  for (const auto& [need, advice] : std::vector<std::pair<Need, std::string>>{
           // 1 MiB of gradients would not make up for 2 MiB.
           {{{}, {5, 1, 0}, 4},
            "Any of these can make room: " + states + "(acts on 5.0 MiB of optimizer)"},
           {{{.stage = 0}, {2, 1, 2}, 4},
            "Any of these can make room: " + states +
                "(acts on 2.0 MiB of optimizer); zero_optimization.stage 2 (acts on 1.0 MiB of "
                "gradients); zero_optimization.stage 3 (acts on 2.0 MiB of parameters)"},
           {{{.stage = 2}, {2, 1, 2}, 4},
            "Any of these can make room: offload_optimizer (acts on 3.0 MiB of optimizer and "
            "gradients); zero_optimization.stage 3 (acts on 2.0 MiB of parameters)"},
           {{{.stage = 3, .offload_optimizer = true}, {2, 1, 2}, 4},
            "Any of these can make room: offload_param (acts on 2.0 MiB of parameters)"},
           {{{}, {3, 0, 2}, 8},
            "No setting frees enough by itself; together: " + states +
                "(acts on 3.0 MiB of optimizer); zero_optimization.stage 3 (acts on 2.0 MiB of "
                "parameters)"},
           {{{}, {3, 0, 2}, 9}, none},
           {{{.stage = 3, .offload_optimizer = true, .offload_param = true}, {3, 0, 2}, 8},
            none}}) {
    fake_.reset();
    fake_.set_memory(8 * kMiB);
    CudaDevice device(0, 0);
    device.use_memory_adviser(memory_adviser(need.settings));
    std::list<Buffer> held;
    for (const auto& [nbytes, category] : {std::pair(need.held[0], MemoryCategory::optimizer),
                                           std::pair(need.held[1], MemoryCategory::gradients),
                                           std::pair(need.held[2], MemoryCategory::parameters)}) {
      if (nbytes > 0) held.push_back(device.allocate(nbytes * kMiB, category));
    }
    EXPECT_THAT(error_of(device, need.asked * kMiB), EndsWith(advice));
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
  fake_.set_delay(5000us);
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
  EXPECT_ERROR_OF(DeviceError, communicator->allocate(1001, Sharing::per_rank), "communication",
                  "of the limit of 1000 B");
}

}  // namespace
}  // namespace zerorun::testing
