// Memory that PyTorch and others use on the inline stream, beside the engine's own streams: nobody
// reads too early or writes too soon.

#include "comm/nccl/communicator.h"
#include "device/cuda/cuda_device.h"
#include "tests/common.h"
#include "tests/device/cuda/fake_cuda_test.h"
#include "tests/harness.h"
#include "tests/zero/toy_model.h"
#include "zerorun/engine.h"

namespace zerorun {
namespace {

using testing::ToyModel;

class ReusedMemoryTest : public testing::FakeCudaTest {
 protected:
  ReusedMemoryTest() : FakeCudaTest(std::chrono::microseconds(1000)) {}
};

TEST_F(ReusedMemoryTest, AGatherWaitsForWhoReadsThere) {
  const auto device = std::make_shared<CudaDevice>(0, 0);
  const auto comm = make_nccl_communicator({.device = device});
  Config config;
  config.zero.stage = 3;
  config.zero.overlap_comm = true;
  config.zero.param_persistence_threshold = 0;
  config.zero.max_reuse_distance = 0;
  config.zero.prefetch_bucket_size = 0;
  const Buffer block = device->allocate(1 << 16, MemoryCategory::other);
  const auto engine = Engine::create(config, *device, *comm, ToyModel::specs(), ToyModel::groups());
  engine->initialize_parameters([](ParameterId id, int64_t begin, std::span<float> out) {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = ToyModel::initial(id, begin + static_cast<int64_t>(i));
    }
  });
  engine->hooks().use_full_memory([&](int /*bucket*/, size_t nbytes) {
    EXPECT_LE(nbytes, block.nbytes());
    return Buffer(block.data(), nbytes, [] {});
  });
  for (int again = 0; again < 10; ++again) {
    for (const char* module : {"h.0", "h.1"}) {
      const ModuleId id = engine->module_id(module);
      const ParameterId weight = engine->parameter_id(std::string(module) + ".weight");
      std::vector<float> seen(static_cast<size_t>(engine->numel(weight)));
      engine->gather(id);
      device->download(device->inline_stream(), engine->parameter(weight), seen.data());
      engine->release(id);
      const ModuleId next = engine->module_id("embed");
      engine->gather(next);
      engine->release(next);
      device->inline_stream().synchronize();
      ASSERT_EQ(seen.front(), ToyModel::initial(weight, 0)) << module << " " << again;
      ASSERT_EQ(seen.back(), ToyModel::initial(weight, engine->numel(weight) - 1)) << module;
    }
  }
}

// The pool gives one module's memory to the next of its size.
TEST_F(ReusedMemoryTest, TheDevicesOwnToo) {
  const auto device = std::make_shared<CudaDevice>(0, 0);
  const auto comm = make_nccl_communicator({.device = device});
  Config config;
  config.zero.stage = 3;
  config.zero.param_persistence_threshold = 0;
  config.zero.max_reuse_distance = 0;
  config.zero.prefetch_bucket_size = 0;
  const std::vector<ParameterSpec> specs = {{"a.weight", {64, 64}, "a", 0, true, ""},
                                            {"b.weight", {64, 64}, "b", 0, true, ""}};
  const auto engine = Engine::create(config, *device, *comm, specs, ToyModel::groups());
  engine->initialize_parameters([](ParameterId id, int64_t, std::span<float> out) {
    std::fill(out.begin(), out.end(), static_cast<float>(id + 1));
  });
  for (int again = 0; again < 20; ++again) {
    std::vector<float> seen(64 * 64);
    engine->gather(engine->module_id("a"));
    device->download(device->inline_stream(), engine->parameter(0), seen.data());
    engine->release(engine->module_id("a"));
    engine->gather(engine->module_id("b"));
    engine->release(engine->module_id("b"));
    device->inline_stream().synchronize();
    ASSERT_EQ(seen.front(), 1.0F) << again;
  }
}

TEST_F(ReusedMemoryTest, MastersWrittenOnTheInlineStreamReachEveryRank) {
  fake_.set_devices(2);
  const auto store = make_memory_store();
  testing::run_threads(2, [&](int rank) {
    CommunicatorOptions options{.rank = rank, .world_size = 2, .store = store};
    const auto device = std::make_shared<CudaDevice>(rank, 0);
    options.device = device;
    const auto comm = make_nccl_communicator(options);
    Config config;
    config.zero.stage = 0;
    config.precision.param_dtype = DType::bf16;
    const std::vector<ParameterSpec> specs = {{"a.weight", {64, 64}, "a", 0, true, ""}};
    const auto engine = Engine::create(config, *device, *comm, specs, ToyModel::groups());
    engine->initialize_parameters([](ParameterId, int64_t, std::span<float> out) {
      std::fill(out.begin(), out.end(), 1.0F);
    });
    // As the bindings do: asynchronous copies on the framework's stream.
    Stream& stream = device->inline_stream();
    for (const StateInterval& part : engine->states().state_intervals()) {
      device->fill(stream, part.master, 3.0F);
    }
    engine->states().refresh_from_masters();
    for (const StateInterval& part : engine->states().state_intervals()) {
      std::vector<float> seen(static_cast<size_t>(part.numel));
      device->download(stream, part.master, seen.data());
      stream.synchronize();
      EXPECT_EQ(std::count(seen.begin(), seen.end(), 3.0F), part.numel) << "rank " << rank;
    }
    std::vector<uint16_t> parameter(64 * 64);
    device->download(stream, engine->parameter(0), parameter.data());
    stream.synchronize();
    EXPECT_EQ(std::count(parameter.begin(), parameter.end(), 0x4040), 64 * 64) << "rank " << rank;
  });
}

}  // namespace
}  // namespace zerorun
