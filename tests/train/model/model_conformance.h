#pragma once

#include "tests/train/model/golden_model.h"

// The model on every implementation of Kernels, against PyTorch's golden file.
namespace zerorun::train::testing {

class ModelConformance : public ::testing::TestWithParam<KernelsUnderTest> {
 protected:
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
  GoldenModel model(GetParam());
  GoldenModel wide(cpu_kernels());
  const bool same = parameters() == DType::fp32;
  for (const ParameterSpec& spec : wide.parameters().specs()) {
    const Doubles values = model.value(spec.name);
    wide.parameters().set_parameter(wide.parameters().parameter_id(spec.name),
                                    std::vector<float>(values.begin(), values.end()));
  }
  const Golden& golden = model.golden();
  const double expected_loss = wide.forward_backward();
  if (same) {
    EXPECT_NEAR(expected_loss, golden.tensor("loss")[0], 1e-6 * expected_loss);
  }
  const double loss_scale = parameters() == DType::fp16 ? 1024.0 : 1.0;
  const double accuracy = std::max(1e-6, model.activation_rounding() / 5);
  EXPECT_NEAR(model.forward_backward(loss_scale), expected_loss, accuracy * expected_loss);
  for (const ParameterSpec& spec : wide.parameters().specs()) {
    const Doubles expected = wide.gradient(spec.name);
    if (same) expect_close(expected, golden.tensor("gradient." + spec.name), 1e-5, spec.name);
    expect_close(model.gradient(spec.name), times(loss_scale, expected),
                 model.gradient_tolerance(parameters()), spec.name);
  }
}

TEST_P(ModelConformance, EvaluationGivesTheTrainingLossAndPyTorchsLogits) {
  GoldenModel model(GetParam());
  const double evaluated = model.model().loss({model.tokens(), model.targets()});
  expect_same_loss(evaluated, model.forward_backward(), model);
  const std::vector<int32_t> first(model.tokens().begin(),
                                   model.tokens().begin() + Golden::kSeqLen);
  const auto logits = model.model().logits(first);
  const std::vector<double>& all = model.golden().tensor("logits");
  const double tolerance =
      std::max(1e-5, 4 * std::max(rounding_of(parameters()), model.activation_rounding()));
  expect_close(logits, {all.begin(), all.begin() + std::ssize(logits)}, tolerance, "logits");
}

TEST_P(ModelConformance, TokensOneByOneGiveTheSameLogits) {
  for (const bool recompute : {false, true}) {
    GoldenModel model(GetParam(), recompute);
    const std::vector<int32_t> tokens(model.tokens().begin(),
                                      model.tokens().begin() + Golden::kSeqLen);
    const auto all = model.model().logits(tokens);
    const Doubles last_of_all(all.end() - Golden::config().vocabulary, all.end());
    std::span<const float> last;
    for (size_t count = 4; count <= tokens.size(); ++count) {
      const int64_t first = count == 4 ? 0 : static_cast<int64_t>(count) - 1;
      last = model.model().logits(std::span(tokens).first(count), first);
    }
    ASSERT_EQ(std::ssize(last), Golden::config().vocabulary);
    expect_close(last, last_of_all, std::max(1e-6, 2 * model.activation_rounding()),
                 "logits of the last token");
  }
}

// Without a backward pass GELU's input is not kept, which is another fused product.
TEST_P(ModelConformance, RecomputedBlocksGiveTheSameBits) {
  GoldenModel kept(GetParam());
  GoldenModel recomputed(GetParam(), /*recompute=*/true);
  const double loss = kept.forward_backward();
  expect_same_loss(recomputed.forward_backward(), loss, kept);
  for (const ParameterSpec& spec : kept.parameters().specs()) {
    const Doubles expected = kept.gradient(spec.name);
    if (GetParam().exact_fusion) {
      EXPECT_EQ(recomputed.gradient(spec.name), expected) << spec.name;
    } else {
      expect_close(recomputed.gradient(spec.name), expected, kept.gradient_tolerance(parameters()),
                   spec.name);
    }
  }
}

TEST_P(ModelConformance, TheLossScaleMultipliesGradientsAndNotTheLoss) {
  GoldenModel plain(GetParam());
  GoldenModel scaled(GetParam());
  EXPECT_EQ(plain.forward_backward(), scaled.forward_backward(4096.0));
  if (plain.activations() == DType::fp16 || parameters() == DType::fp16) return;  // not exact
  for (const ParameterSpec& spec : plain.parameters().specs()) {
    EXPECT_EQ(scaled.gradient(spec.name), times(4096.0, plain.gradient(spec.name))) << spec.name;
  }
}

TEST_P(ModelConformance, AShorterBatchNeedsNoOtherModel) {
  GoldenModel model(GetParam());
  const std::span tokens = std::span(model.tokens()).first(Golden::kSeqLen);
  const std::span targets = std::span(model.targets()).first(Golden::kSeqLen);
  const double loss = model.model().loss({tokens, targets});
  model.forward_backward();
  EXPECT_EQ(model.model().loss({tokens, targets}), loss);
}

TEST_P(ModelConformance, LossesOfMicroStepsAreAddedUntilTheyAreTaken) {
  GoldenModel model(GetParam());
  const double once = model.forward_backward();
  model.model().forward_backward({model.tokens(), model.targets()});
  model.parameters().end_micro_step();
  EXPECT_DOUBLE_EQ(model.forward_backward(), 2 * once);
}

}  // namespace zerorun::train::testing
