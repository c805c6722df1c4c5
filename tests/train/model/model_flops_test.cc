
#include "tests/common.h"
#include "train/model/model.h"
#include "train/model/parameters.h"
#include "train/run/make_kernels.h"

namespace zerorun::train::testing {
namespace {

TEST(ModelFlopsTest, EveryWeightOfAProductIsSixOfATokens) {
  GptConfig config = gpt_preset("gpt2").value();
  config.vocabulary = 50257;
  double weights = 0;
  for (const ParameterSpec& spec : parameter_specs(config)) {
    if (spec.shape.size() == 2 && !spec.name.ends_with("wpe.weight")) {
      weights += static_cast<double>(spec.numel());
    }
  }
  // Scores and their sums: each 2 * width a key and query, and twice as much in backward.
  const double attention = 12.0 * 12 * 768 * 1024;
  EXPECT_DOUBLE_EQ(flops_per_token(config, 1024), 6 * weights + attention);
  EXPECT_NEAR(flops_per_token(config, 1024), 0.855e9, 0.001e9);
}

TEST(ModelFlopsTest, ThePeakIsThatOfSomeMachine) {
  const auto device = make_cpu_device();
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const auto kernels = make_kernels(*device, {.dtype = dtype});
    const double peak = measure_peak_flops(*device, *kernels, dtype);
    EXPECT_GT(peak, 1e6);
    EXPECT_LT(peak, 1e15);
    EXPECT_EQ(device->memory_use(MemoryCategory::activations).live_bytes, 0);
  }
}

}  // namespace
}  // namespace zerorun::train::testing
