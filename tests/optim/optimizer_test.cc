#include "optim/optimizer.h"

#include <nlohmann/json.hpp>

#include "tests/common.h"
#include "zerorun/lr_schedule.h"

namespace zerorun {
namespace {

// "AdamW" is always decoupled, "Adam" unless adam_w_mode is false.
TEST(MakeOptimizer, TypeAndModeMeanWhatTheyMeanInDeepSpeed) {
  const auto is_decoupled = [](const std::string& type, bool adam_w_mode) {
    return Optimizer({.type = type, .adam_w_mode = adam_w_mode}, {}).scalars(1, 1.0F, {}).decoupled;
  };
  for (const std::string type : {"AdamW", "adamw", "ADAMW", "Adam", "adam"}) {
    EXPECT_TRUE(is_decoupled(type, true)) << type;
    EXPECT_EQ(is_decoupled(type, false), type.size() == 5) << type;
  }
}

std::vector<StateSpec> states_of(const OptimizerConfig& config, DType dtype = DType::fp32) {
  const Optimizer optimizer(config, {.state_dtype = dtype});
  return {optimizer.states().begin(), optimizer.states().end()};
}

TEST(OptimizerStates, AreNamedAsInTorch) {
  const std::vector<std::pair<OptimizerConfig, std::vector<StateSpec>>> known = {
      {{.type = "Adam"}, {{"exp_avg"}, {"exp_avg_sq"}}},
      {{.type = "lamb"}, {{"exp_avg"}, {"exp_avg_sq"}}},
      {{.type = "Lion"}, {{"exp_avg"}}},
      {{.type = "Adagrad"}, {{"sum"}}},
      {{.type = "Muon"}, {{"momentum_buffer"}}},
      {{.type = "SGD", .momentum = 0.9}, {{"momentum_buffer"}}},
      {{.type = "SGD"}, {}},
      {{.type = "AdamW8bit"},
       {{"exp_avg", DType::uint8},
        {"exp_avg_scale", {}, 256},
        {"exp_avg_sq", DType::uint8},
        {"exp_avg_sq_scale", {}, 256}}}};
  for (const auto& [config, states] : known) EXPECT_EQ(states_of(config), states) << config.type;
  EXPECT_THAT(states_of({.type = "Lion"}, DType::bf16),
              ElementsAre(StateSpec{"exp_avg", DType::bf16}));
}

TEST(OptimizerStates, OfOtherDtypesAreErrors) {
  EXPECT_THROW(states_of({.type = "Adam"}, DType::int64), ConfigError);
  EXPECT_THROW(states_of({.type = "Adam8bit"}, DType::bf16), ConfigError);
}

TEST(OptimizerScalars, AGroupOverridesTheConfiguration) {
  const Optimizer adam({}, {});
  const UpdateScalars plain = adam.scalars(3, 0.5F, {.lr = 0.25F, .weight_decay = 0.75F});
  EXPECT_EQ(plain.lr, 0.25F);
  EXPECT_EQ(plain.weight_decay, 0.75F);
  EXPECT_EQ(plain.beta1, 0.9);
  EXPECT_EQ(plain.eps, 1e-8F);
  EXPECT_EQ(plain.grad_scale, 0.5F);
  const UpdateScalars uncorrected = Optimizer({.bias_correction = false}, {}).scalars(3, 1.0F, {});
  EXPECT_EQ(uncorrected.bias_correction1, 1.0F);
  EXPECT_EQ(uncorrected.bias_correction2, 1.0F);
  const UpdateScalars changed = adam.scalars(3, 0.5F, {.beta1 = 0.5, .beta2 = 0.25, .eps = 0.125F});
  EXPECT_EQ(changed.beta1, 0.5);
  EXPECT_EQ(changed.beta2, 0.25);
  EXPECT_EQ(changed.eps, 0.125F);
  EXPECT_EQ(changed.bias_correction1, 1.0F - 0.125F);
  const Optimizer sgd({.type = "SGD", .momentum = 0.9}, {});
  EXPECT_EQ(sgd.scalars(1, 1.0F, {}).beta1, 0.9);
  EXPECT_EQ(sgd.scalars(1, 1.0F, {.beta1 = 0.5}).beta1, 0.5);
}

// Adam's moments in 8 bits, on a badly conditioned least-squares problem with noisy gradients,
// come as close to the solution as in fp32.
TEST(Adam8bit, ConvergesAsAdam) {
  constexpr size_t kNumel = 1000;
  const auto loss_after = [](bool in_8_bits) {
    const auto device = make_cpu_device();
    const Optimizer rule({.type = in_8_bits ? "Adam8bit" : "Adam"}, {});
    std::vector<float> param(kNumel, 1.0F);
    std::vector<float> grad(kNumel);
    std::vector<float> states[2] = {std::vector<float>(kNumel), std::vector<float>(kNumel)};
    std::vector<uint8_t> codes[2] = {std::vector<uint8_t>(kNumel), std::vector<uint8_t>(kNumel)};
    std::vector<float> scales[2] = {std::vector<float>(4), std::vector<float>(4)};
    const auto curvature = [](size_t i) { return std::pow(10.0F, static_cast<float>(i % 5) - 3); };
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    UpdateTensors tensors{.master = view_of(std::span(param)),
                          .grad = view_of(std::span(grad)),
                          .param = view_of(std::span(param))};
    for (size_t k = 0; k < 2; ++k) {
      tensors.states[k] = in_8_bits ? view_of(std::span(codes[k])) : view_of(std::span(states[k]));
      if (in_8_bits) tensors.scales[k] = view_of(std::span(scales[k]));
    }
    double loss = 0;
    for (int step = 1; step <= 2000; ++step) {
      for (size_t i = 0; i < kNumel; ++i) {
        grad[i] = curvature(i) * (param[i] + 0.3F * normal(random));
      }
      const float lr = 0.01F * static_cast<float>(2000 - step) / 2000;
      const UpdateSegment all{.numel = kNumel, .scalars = rule.scalars(step, 1.0F, {.lr = lr})};
      device->update(device->inline_stream(), tensors, {&all, 1});
    }
    for (const float value : param) loss += value * value / kNumel;
    return loss;
  };
  const double in_fp32 = loss_after(false);
  const double in_8_bits = loss_after(true);
  EXPECT_LT(in_fp32, 0.01);
  EXPECT_LT(in_8_bits, 1.5 * in_fp32 + 1e-4);
}

TEST(MakeOptimizer, UnknownTypeIsAnErrorNamingTheKnownOnes) {
  EXPECT_ERROR_OF(ConfigError, make_optimizers({.type = "Adamax"}, {}), "'Adamax'", "Adam, AdamW,");
}

TEST(MuonTest, TheRestHasItsOwnLearningRateAndFollowsTheMatrices) {
  const OptimizerConfig config{.type = "Muon", .muon_lr = 0.02F, .adam_lr = 3e-4F};
  const std::vector<Optimizer> optimizers = make_optimizers(config, {});
  ASSERT_EQ(optimizers.size(), 2U);
  EXPECT_EQ(optimizers[0].scalars(1, 1.0F, {"start", 0.02F}).lr, 3e-4F);
  EXPECT_EQ(optimizers[1].scalars(1, 1.0F, {"start", 0.02F}).lr, 0.02F);
  EXPECT_EQ(optimizers[0].scalars(1, 1.0F, {"decayed", 0.01F}).lr, 1.5e-4F);
  EXPECT_TRUE(optimizers[1].muon_scalars(1, {"start", 0.02F}, 4, 2).decoupled);  // weight decay
  EXPECT_THROW(make_optimizers({.type = "Muon", .muon_lr = 0.0F, .adam_lr = 3e-4F}, {}),
               ConfigError);
}

TEST(RuleName, IsThatOfTheFormulaAndNotOfItsSpelling) {
  EXPECT_EQ(rule_name({.type = "adamw"}), "AdamW");
  EXPECT_EQ(rule_name({.type = "Adam"}), "AdamW");
  EXPECT_EQ(rule_name({.type = "Adam", .adam_w_mode = false}), "Adam with adam_w_mode false");
  EXPECT_EQ(rule_name({.type = "adam8bit"}), "AdamW8bit");
  EXPECT_EQ(rule_name({.type = "LAMB"}), "Lamb");
}

TEST(Lamb, LimitsOfTheTrustRatioThatCannotBeMetAreAnError) {
  EXPECT_ERROR_OF(ConfigError, Optimizer({.type = "Lamb", .min_coeff = 3, .max_coeff = 2}, {}),
                  "min_coeff: got 3, expected at most max_coeff, which is 2");
}

using Json = nlohmann::json;

constexpr int64_t kSteps = 10'000;
constexpr double kTolerance = 1e-12;  // relative; log and cos differ between C libraries

std::unique_ptr<LrSchedule> make(const Json& scheduler, std::vector<double> base_lrs) {
  const ParsedConfig parsed = parse_config(Json{{"scheduler", scheduler}}.dump());
  return make_lr_schedule(parsed.config.scheduler, std::move(base_lrs));
}

void expect_close(double got, double expected, const std::string& where) {
  EXPECT_NEAR(got, expected, std::abs(expected) * kTolerance) << where;
}

// Results of make_schedule_golden.py.
TEST(LrSchedule, SetsWhatDeepSpeedAndHuggingFaceSet) {
  std::ifstream file(test_paths::tests() + "/optim/data/schedule_golden.json");
  const Json cases = Json::parse(file).at("cases");
  ASSERT_GE(cases.size(), 20U);
  for (const Json& one : cases) {
    const std::string name = one.at("scheduler").dump();
    const auto schedule = make(one.at("scheduler"), one.at("base_lrs").get<std::vector<double>>());
    ASSERT_EQ(schedule->groups(), 2);
    for (size_t i = 0; i < one.at("steps").size(); ++i) {
      const auto step = one.at("steps")[i].get<int64_t>();
      for (int group = 0; group < 2; ++group) {
        const std::string where = fmt::format("{} step {} group {}", name, step, group);
        const ScheduledValues values = schedule->values(step, group);
        expect_close(values.lr, one.at("lr")[i][group].get<double>(), where);
        ASSERT_EQ(values.betas.has_value(), one.contains("betas")) << where;
        if (!values.betas) continue;
        expect_close(values.betas->beta1, one["betas"][i][group][0].get<double>(), where);
        expect_close(values.betas->beta2, one["betas"][i][group][1].get<double>(), where);
      }
    }
    if (one.contains("state_dict")) {
      EXPECT_EQ(schedule->last_batch_iteration(kSteps + 1),
                one["state_dict"].at("last_batch_iteration").get<int64_t>());
    }
  }
}

// Unlike Hugging Face's.
TEST(LrSchedule, ACosineDoesNotRiseAgainAfterItsEnd) {
  const Json params{{"total_num_steps", 10}, {"min_lr_ratio", 0.25}};
  const auto cosine = make({{"type", "cosine"}, {"params", params}}, {8.0});
  for (const int64_t step : {10, 15, 1'000'000'000}) EXPECT_EQ(cosine->values(step, 0).lr, 2.0);
}

TEST(LrSchedule, WithoutATypeGroupsKeepTheirRates) {
  const auto schedule = make_lr_schedule(SchedulerConfig{}, {0.5, 0.25});
  for (const int64_t step : {0, 1, 10'000}) {
    EXPECT_EQ(schedule->values(step, 0).lr, 0.5);
    EXPECT_EQ(schedule->values(step, 1).lr, 0.25);
    EXPECT_FALSE(schedule->values(step, 0).betas);
  }
}

// Programs give 0, which DeepSpeed took as 2 since its #772; 0.19 refuses it.
TEST(LrSchedule, DeepSpeedsTypesWarmUpForTwoStepsAtLeast) {
  for (const std::string type : {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"}) {
    Json params = type == "WarmupLR" ? Json::object() : Json{{"total_num_steps", 9}};
    std::vector<std::vector<double>> found(3);
    for (size_t steps = 0; steps <= 2; ++steps) {
      params["warmup_num_steps"] = steps;
      const auto schedule = make({{"type", type}, {"params", params}}, {0.5});
      for (int64_t i = 0; i < 9; ++i) found[steps].push_back(schedule->values(i, 0).lr);
    }
    EXPECT_THAT(found, ::testing::Each(found[2])) << type;
  }
}

TEST(LrSchedule, ErrorsNameTheKey) {
  const std::vector<std::pair<SchedulerConfig, std::string>> refused = {
      {{.type = "Cosine"}, "type: got 'Cosine'"},
      {{.type = "cosine", .warmup_num_steps = 0}, "params/total_num_steps: missing"},
      {{.type = "WarmupLR", .warmup_num_steps = -1}, "params/warmup_num_steps: missing, or "},
      {{.type = "linear", .total_num_steps = 999},
       "params/warmup_num_steps: got 1000 steps of warm-up, expected at most total_num_steps, 999"},
      {{.type = "WSD", .total_num_steps = 1500, .decay_num_steps = 501},
       "params/decay_num_steps: got 501"},
      {{.type = "WSD", .total_num_steps = 1500}, "params/decay_num_steps: missing"},
      {{.type = "OneCycle"}, "params/cycle_min_lr: missing"},
      {{.type = "OneCycle"}, "params/cycle_max_lr: missing"},
      {{.type = "WarmupLR", .warmup_min_lr = {1, 2, 3}},
       "params/warmup_min_lr: got 3 values, expected 1, or 2"}};
  for (const auto& [config, text] : refused) {
    EXPECT_ERROR_OF(ConfigError, make_lr_schedule(config, {1, 2}), "/scheduler/" + text);
  }
  const auto schedule = make_lr_schedule({.type = "WarmupLR"}, {1});
  EXPECT_THROW(schedule->values(0, 1), InternalError);
  EXPECT_THROW(schedule->values(-1, 0), InternalError);
}

}  // namespace
}  // namespace zerorun
