#include "zerorun/loss_scaler.h"

#include <nlohmann/json.hpp>

#include "amp/step_decider.h"
#include "tests/common.h"

namespace zerorun {
namespace {

// The update rule as DeepSpeed documents it, line by line.
struct Reference {
  double scale;
  int64_t iteration = 0;
  int64_t last_bad = -1;
  int64_t hysteresis;
  bool exhausted = false;

  void update(bool bad, const LossScalerOptions& options) {
    if (bad) {
      if (options.hysteresis == 1 || hysteresis == 1) {
        if (scale == options.min_scale) {
          exhausted = true;
          return;
        }
        scale = std::max(scale / 2, options.min_scale);
      } else {
        hysteresis -= 1;
      }
      last_bad = iteration;
    } else {
      if (options.consecutive_hysteresis) hysteresis = options.hysteresis;
      const int64_t n = (iteration - last_bad) - 1;
      if (n > 0 && n % options.window == 0) {
        if (!options.consecutive_hysteresis) hysteresis = options.hysteresis;
        scale *= 2;
      }
    }
    iteration += 1;
  }
};

TEST(LossScaler, FollowsTheReferenceOverRandomSequencesAndSettings) {
  std::mt19937 random(21);
  for (int round = 0; round < 3000; ++round) {
    LossScalerOptions options;
    options.initial_scale_power = static_cast<int>(random() % 20);
    options.window = 1 + static_cast<int64_t>(random() % 20);
    options.hysteresis = 1 + static_cast<int64_t>(random() % 4);
    options.consecutive_hysteresis = random() % 2 == 0;
    options.min_scale = std::ldexp(1.0, static_cast<int>(random() % 3));
    if (options.initial_scale_power < 3) options.min_scale = 1.0;
    LossScaler scaler(options);
    Reference reference{std::ldexp(1.0, options.initial_scale_power), 0, -1, options.hysteresis};
    const unsigned bad_in = 2 + random() % 30;
    for (int step = 0; step < 200; ++step) {
      const bool bad = random() % bad_in == 0;
      const double before = scaler.scale();
      const LossScaler::Outcome outcome = scaler.update(bad);
      reference.update(bad, options);
      ASSERT_EQ(outcome == LossScaler::Outcome::exhausted, reference.exhausted);
      ASSERT_EQ(scaler.scale(), reference.scale);
      ASSERT_EQ(outcome == LossScaler::Outcome::grown, scaler.scale() > before);
      ASSERT_EQ(outcome == LossScaler::Outcome::reduced, scaler.scale() < before);
      if (reference.exhausted) break;
      ASSERT_EQ(scaler.state().cur_iter, reference.iteration);
      ASSERT_EQ(scaler.state().last_overflow_iter, reference.last_bad);
      ASSERT_EQ(scaler.state().cur_hysteresis, reference.hysteresis);
      LossScaler resumed(options);
      resumed.load_state(scaler.state());
      scaler = resumed;
    }
  }
}

TEST(LossScaler, StaticScaleNeverMovesAndIsNeverExhausted) {
  LossScaler scaler({.static_scale = 1, .hysteresis = 1});
  for (int i = 0; i < 5000; ++i) EXPECT_EQ(scaler.update(false), LossScaler::Outcome::kept);
  EXPECT_FALSE(scaler.at_minimum());
  EXPECT_EQ(scaler.update(true), LossScaler::Outcome::skipped);
  EXPECT_EQ(scaler.scale(), 1);
}

TEST(LossScaler, RefusesOptionsOutOfRange) {
  EXPECT_THROW(LossScaler({.static_scale = -1}), ConfigError);
  EXPECT_THROW(LossScaler({.static_scale = INFINITY}), ConfigError);
  EXPECT_THROW(LossScaler({.window = 0}), ConfigError);
  EXPECT_THROW(LossScaler({.hysteresis = 0}), ConfigError);
  EXPECT_THROW(LossScaler({.min_scale = 0}), ConfigError);
  LossScaler scaler(LossScalerOptions{});
  EXPECT_THROW(scaler.load_state({.cur_scale = NAN}), ConfigError);
}

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
