#pragma once

#include "tests/train/model/golden_model.h"

// The model on every implementation of Kernels, against PyTorch's golden file.
namespace zerorun::train::testing {

struct ModelConformance : ::testing::TestWithParam<KernelsUnderTest> {
  DType parameters() const { return GetParam().parameters; }
  // Bound for the same computation with other things fused.
  void expect_same_loss(double loss, double expected, const GoldenModel& model) const {
    const double rounding = std::max(1e-6, model.activation_rounding());
    EXPECT_NEAR(loss, expected, GetParam().exact_fusion ? 0.0 : rounding * expected);
  }
};

// Parameters are rounded, so the reference is an fp32 model on the CPU with the rounded ones; that
// one is compared with PyTorch.
TEST_P(ModelConformance, LossAndGradientsMatchPyTorch) {
  constexpr double kLossScale = 1024.0;
  GoldenModel model(GetParam());
  GoldenModel wide(cpu_kernels());
  const bool same = parameters() == DType::fp32;
  const std::vector<ParameterSpec>& specs = wide.parameters().specs();
  for (const ParameterSpec& spec : specs) wide.set(spec.name, model.value(spec.name));
  const Golden& golden = model.golden();
  const double expected_loss = wide.forward_backward();
  if (same) {
    EXPECT_NEAR(expected_loss, golden.tensor("loss")[0], 1e-6 * expected_loss);
  }
  const double accuracy = std::max(1e-6, model.activation_rounding() / 5);
  EXPECT_NEAR(model.forward_backward(kLossScale), expected_loss, accuracy * expected_loss);
  for (const ParameterSpec& spec : specs) {
    const Doubles expected = wide.gradient(spec.name);
    if (same) expect_close(expected, golden.tensor("gradient." + spec.name), 1e-5, spec.name);
    expect_close(model.gradient(spec.name), times(kLossScale, expected),
                 model.gradient_tolerance(parameters()), spec.name);
  }
}

TEST_P(ModelConformance, EvaluationGivesTheTrainingLossAndPyTorchsLogits) {
  GoldenModel model(GetParam());
  const double evaluated = model.model().loss(model.batch());
  const auto [tokens, targets] = model.batch();
  const Batch shorter{tokens.first(Golden::kSeqLen), targets.first(Golden::kSeqLen)};
  const double of_shorter = model.model().loss(shorter);
  expect_same_loss(evaluated, model.forward_backward(), model);
  EXPECT_EQ(model.model().loss(shorter), of_shorter);
  const auto logits = model.model().logits(shorter.tokens);
  const Doubles& all = model.golden().tensor("logits");
  const double tolerance =
      std::max(1e-5, 4 * std::max(rounding_of(parameters()), model.activation_rounding()));
  expect_close(logits, {all.begin(), all.begin() + std::ssize(logits)}, tolerance, "logits");
}

TEST_P(ModelConformance, TokensOneByOneGiveTheSameLogits) {
  for (const bool recompute : {false, true}) {
    GoldenModel model(GetParam(), {.recompute = recompute});
    const std::span<const int32_t> tokens = model.batch().tokens.first(Golden::kSeqLen);
    const auto all = model.model().logits(tokens);
    const Doubles last_of_all(all.end() - Golden::config().vocabulary, all.end());
    std::span<const float> last = model.model().logits(tokens.first(4));
    for (size_t count = 5; count <= tokens.size(); ++count) {
      last = model.model().logits(tokens.first(count), static_cast<int64_t>(count) - 1);
    }
    expect_close(last, last_of_all, std::max(1e-6, 2 * model.activation_rounding()),
                 "logits of the last token");
  }
}

// Without a backward pass GELU's input is not kept, which is another fused product.
TEST_P(ModelConformance, RecomputedBlocksGiveTheSameBits) {
  GoldenModel kept(GetParam());
  GoldenModel recomputed(GetParam(), {.recompute = true});
  const double loss = kept.forward_backward();
  expect_same_loss(recomputed.forward_backward(), loss, kept);
  for (const ParameterSpec& spec : kept.parameters().specs()) {
    expect_close(recomputed.gradient(spec.name), kept.gradient(spec.name),
                 GetParam().exact_fusion ? 0.0 : kept.gradient_tolerance(parameters()), spec.name);
  }
}

}  // namespace zerorun::train::testing
