// Full parameters in memory of a framework's, from a gather to the drop.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "tests/harness.h"
#include "tests/zero/toy_model.h"
#include "zerorun/engine.h"

namespace zerorun::full_memory {
namespace {

using testing::run_ranks;
using testing::ToyModel;

// By bucket: what an engine has at the moment.
class Lender {
 public:
  EngineHooks::FullMemory lend() {
    return [this](int bucket, size_t nbytes) {
      auto& block = lent_[bucket];
      EXPECT_TRUE(block.empty()) << "bucket " << bucket << " is asked for twice";
      block.resize(nbytes);
      return Buffer(block.data(), nbytes, [this, bucket] { lent_.erase(bucket); });
    };
  }
  size_t lent() const { return lent_.size(); }
  const std::byte* data(int bucket) const { return lent_.at(bucket).data(); }

 private:
  std::map<int, std::vector<std::byte>> lent_;
};

Config config_of(bool share_parameters) {
  Config config;
  config.zero.stage = 3;
  config.zero.param_persistence_threshold = 0;
  config.zero.max_reuse_distance = 0;
  config.zero.prefetch_bucket_size = 0;
  config.share_parameters = share_parameters;
  return config;
}

TEST(FullMemory, IsTheFrameworksFromAGatherToTheDrop) {
  run_ranks(2, [](Communicator& comm) {
    const auto device = make_cpu_device();
    Lender lender;
    const auto engine =
        Engine::create(config_of(false), *device, comm, ToyModel::specs(), ToyModel::groups());
    engine->initialize_parameters([](ParameterId id, int64_t begin, std::span<float> out) {
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] = ToyModel::initial(id, begin + static_cast<int64_t>(i));
      }
    });
    engine->hooks().use_full_memory(lender.lend());
    const ModuleId module = engine->module_id("h.0");
    const ParameterId weight = engine->parameter_id("h.0.weight");
    const FullPlace place = engine->hooks().full_place(weight).value();
    for (int again = 0; again < 2; ++again) {
      engine->gather(module);
      const auto* full = reinterpret_cast<const float*>(lender.data(place.bucket)) + place.offset;
      EXPECT_EQ(engine->parameter(weight).as<float>(), full);
      for (int64_t i = 0; i < engine->numel(weight); ++i) {
        ASSERT_EQ(full[i], ToyModel::initial(weight, i)) << i;
      }
      EXPECT_LE(place.offset + engine->numel(weight), place.bucket_numel);
      engine->release(module);
      EXPECT_EQ(lender.lent(), 0);
    }
  });
}

TEST(FullMemory, HasNoPlaceForParametersThatStayWhereTheyAre) {
  run_ranks(2, [](Communicator& comm) {
    const auto device = make_cpu_device();
    for (const int stage : {0, 2, 3}) {  // at stage 3 the ranks share memory
      Config config = config_of(true);
      config.zero.stage = stage;
      const auto engine =
          Engine::create(config, *device, comm, ToyModel::specs(), ToyModel::groups());
      EXPECT_EQ(engine->hooks().full_place(engine->parameter_id("h.0.weight")), std::nullopt)
          << stage;
    }
  });
}

}  // namespace
}  // namespace zerorun::full_memory
