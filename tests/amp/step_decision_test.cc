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

TEST(ClipFactor, IsOneWhereNothingIsClippedAndKeepsInfinityAndNanVisible) {
  EXPECT_EQ(clip_factor(1e30, 0.0), 1.0);
  EXPECT_EQ(clip_factor(0.0, 1.0), 1.0);
  EXPECT_EQ(clip_factor(0.5, 1.0), 1.0);
  EXPECT_EQ(clip_factor(INFINITY, 1.0), 0.0);
  EXPECT_TRUE(std::isnan(clip_factor(NAN, 1.0)));
}

Config scaling_config() {
  Config config;
  config.precision.param_dtype = DType::fp16;
  config.precision.loss_scaler = {
      .initial_scale_power = 3, .window = 1, .hysteresis = 1, .min_scale = 4};
  config.gradient_clipping = 2.0;
  return config;
}

TEST(StepDecision, ScalesByAverageLossScaleAndClippingInOneFactor) {
  StepDecider decider(scaling_config(), 2.0);
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
  StepDecider decider(scaling_config(), 1.0);
  EXPECT_FALSE(decider.next_overflow_is_fatal());
  const StepDecision decision = decider.decide(0.25, false);  // of the elements that are finite
  EXPECT_FALSE(decision.applied);
  EXPECT_EQ(decision.clip, 1.0);
  EXPECT_EQ(decider.loss_scale(), 4.0);
  EXPECT_TRUE(decider.next_overflow_is_fatal());
  decider.decide(1.0, false);
  EXPECT_EQ(decider.loss_scale(), 4.0);
  decider.load_scaler_state(std::nullopt);  // of a checkpoint without a scale
  EXPECT_EQ(decider.loss_scale(), 4.0);
}

}  // namespace
}  // namespace zerorun
