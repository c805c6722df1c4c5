// Settings that mean another thing on GPUs where they are not given.

#include "tests/common.h"
#include "zero/memory_plan.h"
#include "zerorun/config.h"

namespace zerorun::gpu_defaults {
namespace {

// The largest bucket of a model of 1.2e9 parameters.
int64_t largest_bucket(const Config& config, bool computes_on_host) {
  std::vector<ParameterSpec> specs;
  for (int i = 0; i < 120; ++i) {
    specs.push_back({.name = "p" + std::to_string(i), .shape = {10'000'000}});
  }
  const ShardedModel model(config, specs, /*world_size=*/2, computes_on_host);
  int64_t largest = 0;
  for (const Bucket& bucket : model.buckets) {
    int64_t numel = 0;
    for (const Placement& placement : bucket.layout.placements) numel += placement.numel;
    largest = std::max(largest, numel);
  }
  return largest;
}

TEST(GpuDefaults, BucketsHoldUpTo100Megabytes) {
  for (const int stage : {0, 1, 2}) {
    Config config;
    config.zero.stage = stage;
    config.precision.param_dtype = DType::bf16;
    EXPECT_EQ(largest_bucket(config, true), 150'000'000) << "an eighth of the model on CPUs";
    EXPECT_EQ(largest_bucket(config, false), 50'000'000);
    config.precision.param_dtype = DType::fp32;
    EXPECT_EQ(largest_bucket(config, false), 20'000'000);
    config.zero.reduce_bucket_size = 100'000'000;
    EXPECT_EQ(largest_bucket(config, false), 100'000'000) << "what is given counts";
  }
}

}  // namespace
}  // namespace zerorun::gpu_defaults
