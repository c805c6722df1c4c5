#include <nlohmann/json.hpp>

#include "amp/step_decider.h"
#include "tests/common.h"
#include "tests/paths.h"

namespace zerorun {
namespace {

TEST(ClipFactor, MatchesTorch) {
  std::ifstream file(test_paths::tests() + "/zero/data/rules_golden.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  ASSERT_FALSE(golden["clip"].empty());
  for (const auto& run : golden["clip"]) {
    const double factor = run["factor"];
    EXPECT_NEAR(clip_factor(run["norm"], run["max_norm"]), factor, 1e-14 * factor);
  }
}

TEST(ClipFactor, IsOneWhenOffOrSmallEnough) {
  EXPECT_EQ(clip_factor(1e30, 0.0), 1.0);
  EXPECT_EQ(clip_factor(0.0, 1.0), 1.0);
  EXPECT_EQ(clip_factor(0.5, 1.0), 1.0);
}

TEST(ClipFactor, NeverExceedsOneAndNeverRaisesTheNorm) {
  for (double norm = 1e-9; norm < 1e9; norm *= 3) {
    const double factor = clip_factor(norm, 2.0);
    EXPECT_GT(factor, 0.0);
    EXPECT_LE(factor, 1.0);
    EXPECT_LE(norm * factor, 2.0);
  }
}

TEST(ClipFactor, KeepsInfinityAndNanVisible) {
  EXPECT_EQ(clip_factor(std::numeric_limits<double>::infinity(), 1.0), 0.0);
  EXPECT_TRUE(std::isnan(clip_factor(std::numeric_limits<double>::quiet_NaN(), 1.0)));
}

Config config_of(DType dtype) {
  Config config;
  config.precision.param_dtype = dtype;
  config.precision.loss_scaler = {
      .initial_scale_power = 3, .window = 1, .hysteresis = 1, .min_scale = 4};
  config.gradient_clipping = 2.0;
  return config;
}

TEST(StepDecision, ScalesByAverageLossScaleAndClippingInOneFactor) {
  StepDecider decider(config_of(DType::fp16), 2.0);
  decider.average_over(2);
  EXPECT_EQ(decider.loss_scale(), 8.0);
  EXPECT_EQ(decider.average(), 0.25 / 8);
  const StepDecision decision = decider.decide(320.0, true);  // 10 on average and unscaled
  EXPECT_TRUE(decision.applied);
  EXPECT_EQ(decision.norm, 10.0);
  EXPECT_EQ(decision.clip, clip_factor(10.0, 2.0));
  EXPECT_EQ(decision.factor, static_cast<float>(0.25 / 8 * clip_factor(10.0, 2.0)));
}

TEST(StepDecision, AnOverflowSkipsTheStepAndHalvesTheScaleDownToTheMinimum) {
  StepDecider decider(config_of(DType::fp16), 1.0);
  EXPECT_FALSE(decider.next_overflow_is_fatal());
  const StepDecision decision = decider.decide(0.25, false);  // of the elements that are finite
  EXPECT_FALSE(decision.applied);
  EXPECT_EQ(decision.clip, 1.0);
  EXPECT_EQ(decider.loss_scale(), 4.0);
  EXPECT_TRUE(decider.next_overflow_is_fatal());
  decider.decide(1.0, false);
  EXPECT_EQ(decider.loss_scale(), 4.0);
}

TEST(StepDecision, WithoutTheCheckBf16AppliesWhatIsNotFinite) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const bool check : {false, true}) {
      Config config = config_of(dtype);
      config.precision.check_grad_overflow = check;
      StepDecider decider(config, 1.0);
      EXPECT_EQ(decider.loss_scale(), 1.0);
      EXPECT_FALSE(decider.scaler_state());
      EXPECT_EQ(decider.decide(1.0, false).applied, dtype == DType::bf16 && !check);
      EXPECT_FALSE(decider.next_overflow_is_fatal());
    }
  }
}

TEST(StepDecision, ContinuesFromASavedScale) {
  StepDecider first(config_of(DType::fp16), 1.0);
  first.decide(1.0, false);
  StepDecider second(config_of(DType::fp16), 1.0);
  second.load_scaler_state(first.scaler_state());
  EXPECT_EQ(second.loss_scale(), 4.0);
  second.load_scaler_state(std::nullopt);
  EXPECT_EQ(second.loss_scale(), 4.0);
}

}  // namespace
}  // namespace zerorun
