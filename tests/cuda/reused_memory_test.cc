// Full parameters of a framework's memory that hands the same block out again at once, as caching
// allocators do: kernels may still read what lay there before.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "comm/nccl_communicator.h"
#include "device/cuda/cuda_device.h"
#include "tests/cuda/fake/fake_cuda.h"
#include "tests/zero/toy_model.h"
#include "zerorun/engine.h"

namespace zerorun {
namespace {

using fake::FakeCuda;
using testing::ToyModel;

class ReusedMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    FakeCuda::instance().reset();
    FakeCuda::instance().set_delay(std::chrono::microseconds(1000));
  }
  void TearDown() override {
    EXPECT_EQ(FakeCuda::instance().violations(), std::vector<std::string>());
    EXPECT_EQ(FakeCuda::instance().leaks(), std::vector<std::string>());
  }
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
  engine->use_full_memory([&](int /*bucket*/, size_t nbytes) {
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

}  // namespace
}  // namespace zerorun
