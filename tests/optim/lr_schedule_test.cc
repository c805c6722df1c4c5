#include "zerorun/lr_schedule.h"

#include <nlohmann/json.hpp>

#include "tests/error_of.h"
#include "tests/paths.h"

namespace zerorun::testing {
namespace {

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
    EXPECT_THAT(error_of<ConfigError>([&] {
                  make_lr_schedule(config, {1, 2});
                }),
                HasSubstr("/scheduler/" + text));
  }
  const auto schedule = make_lr_schedule({.type = "WarmupLR"}, {1});
  EXPECT_THROW(schedule->values(0, 1), InternalError);
  EXPECT_THROW(schedule->values(-1, 0), InternalError);
}

}  // namespace
}  // namespace zerorun::testing
