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

// Results of DeepSpeed and Hugging Face: make_schedule_golden.py.
const Json& golden_cases() {
  static const Json cases = [] {
    std::ifstream file(test_paths::tests() + "/optim/data/schedule_golden.json");
    return Json::parse(file).at("cases");
  }();
  return cases;
}

TEST(LrSchedule, SetsWhatDeepSpeedAndHuggingFaceSet) {
  const Json& cases = golden_cases();
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

// The formulas a second time, as a table of them says it: i is the last batch iteration.

struct Params {
  Json json;
  double number(const char* name, double fallback) const { return json.value(name, fallback); }
  double per_group(const char* name, double fallback, int group) const {
    if (!json.contains(name)) return fallback;
    return json[name].is_array() ? json[name][group].get<double>() : json[name].get<double>();
  }
  bool is_log() const { return json.value("warmup_type", "log") == "log"; }
};

double reference_ramp(const Params& params, double i, double n) {
  return params.is_log() ? std::log2(i + 1) / std::log2(n) : i / n;
}

double reference_warmup(const std::string& type, const Params& params, double base, int group,
                        double i) {
  const double low = params.per_group("warmup_min_lr", 0, group);
  const double high = params.per_group("warmup_max_lr", type == "WarmupLR" ? base : 1e-3, group);
  const double n = std::max(2.0, params.number("warmup_num_steps", 1000));
  if (i < 0) return low;
  if (i < n) return low + reference_ramp(params, i, n) * (high - low);
  if (type == "WarmupLR") return high;
  const double total = params.number("total_num_steps", 0);
  return low + std::max(0.0, (total - i) / std::max(1.0, total - n)) * (high - low);
}

double reference_warmup_cosine(const Params& params, double base, double i) {
  const double n = std::max(2.0, params.number("warmup_num_steps", 1000));
  const double first = params.number("warmup_min_ratio", 0);
  const double last = params.number("cos_min_ratio", 1e-4);
  if (i < 0) return 0;
  if (i < n) return base * (first + (1 - first) * reference_ramp(params, i, n));
  const double done =
      std::min(1.0, (i - n + 1) / std::max(1.0, params.number("total_num_steps", 0) - n));
  const double half = std::cos(M_PI * done / 2);
  return base * (last + (1 - last) * half * half);  // (1 + cos 2a) / 2
}

double reference_range_test(const Params& params, int group, double i) {
  const double interval = (i + 1) / params.number("lr_range_test_step_size", 2000);
  const bool stairs = params.json.value("lr_range_test_staircase", false);
  return params.per_group("lr_range_test_min_lr", 1e-3, group) *
         (1 +
          params.number("lr_range_test_step_rate", 1) * (stairs ? std::floor(interval) : interval));
}

// Counts instead of dividing: whole stairs, and distances from the cycle's ends.
double reference_one_cycle(const Params& params, int group, int64_t i) {
  const auto first = static_cast<int64_t>(params.number("cycle_first_step_size", 2000));
  const auto second =
      static_cast<int64_t>(params.number("cycle_second_step_size", static_cast<double>(first)));
  const double low = params.per_group("cycle_min_lr", 0, group);
  const double high = params.per_group("cycle_max_lr", 0, group);
  if (i >= first + second) {
    const double size = params.number("decay_step_size", 0);
    const auto steps = static_cast<double>(i - first - second + 1);
    return size == 0 ? low : low / (1 + params.number("decay_lr_rate", 0) * steps / size);
  }
  const int64_t b = (i + 1) % (first + second);
  const bool rises = b <= first;
  const int64_t length = rises ? first : second;
  const int64_t distance = rises ? b : first + second - b;
  auto stairs = static_cast<int64_t>(params.number("cycle_first_stair_count", 0));
  if (!rises) {
    stairs = static_cast<int64_t>(
        params.number("cycle_second_stair_count", static_cast<double>(stairs)));
  }
  const int64_t whole_stairs = distance * stairs / length;
  const double height = stairs > 0 ? static_cast<double>(whole_stairs) / static_cast<double>(stairs)
                                   : static_cast<double>(distance) / static_cast<double>(length);
  return low + (high - low) * height;
}

double reference_ratio(const std::string& type, const Params& params, double base, double step) {
  const double warmup = params.number("warmup_num_steps", 0);
  const double total = params.number("total_num_steps", 0);
  const double last = params.number("min_lr_ratio", 0);
  const double from = type == "WSD" ? last : 0;
  if (step < warmup) return base * (from + (1 - from) * step / warmup);
  if (type == "constant") return base;
  const double decay = type == "WSD" ? params.number("decay_num_steps", 0) : total - warmup;
  const double done = std::clamp((step - (total - decay)) / decay, 0.0, 1.0);
  const std::string shape = type == "WSD" ? params.json.value("decay_type", "cosine") : type;
  double left = 1 - done;
  if (shape == "cosine") left = std::pow(std::cos(M_PI * done / 2), 2);
  if (shape == "1-sqrt") left = 1 - std::sqrt(done);
  return base * (last + (1 - last) * left);
}

double reference(const std::string& type, const Params& params, double base, int group,
                 int64_t step) {
  const int64_t i = step + static_cast<int64_t>(params.number("last_batch_iteration", -1));
  const auto at = static_cast<double>(i);
  if (step == 0 && i != -1) return base;
  if (type == "WarmupCosineLR") return reference_warmup_cosine(params, base, at);
  if (type.starts_with("Warmup")) return reference_warmup(type, params, base, group, at);
  if (type == "LRRangeTest") return reference_range_test(params, group, at);
  if (type == "OneCycle") return reference_one_cycle(params, group, i);
  return reference_ratio(type, params, base, static_cast<double>(step));
}

TEST(LrSchedule, EqualsItsFormulaOverTenThousandSteps) {
  for (const Json& one : golden_cases()) {
    const auto type = one.at("scheduler").at("type").get<std::string>();
    const Params params{one.at("scheduler").at("params")};
    const auto base_lrs = one.at("base_lrs").get<std::vector<double>>();
    const auto schedule = make(one.at("scheduler"), base_lrs);
    for (int64_t step = 0; step <= kSteps; ++step) {
      for (int group = 0; group < 2; ++group) {
        const double expected =
            reference(type, params, base_lrs[static_cast<size_t>(group)], group, step);
        // Near an end of 0 the two formulas round differently, by a part of the largest rate.
        ASSERT_NEAR(schedule->values(step, group).lr, expected,
                    std::max(std::abs(expected), 1e-3) * kTolerance)
            << one.at("scheduler") << " step " << step;
      }
    }
  }
}

TEST(LrSchedule, IsAFunctionOfTheAppliedStepsAlone) {
  std::mt19937 random(7);
  for (const Json& one : golden_cases()) {
    const auto base_lrs = one.at("base_lrs").get<std::vector<double>>();
    const auto straight = make(one.at("scheduler"), base_lrs);
    std::vector<double> run;
    for (int64_t step = 0; step <= kSteps; ++step) run.push_back(straight->values(step, 1).lr);
    for (int i = 0; i < 200; ++i) {  // resumed anywhere, by another object
      const auto step = static_cast<int64_t>(random() % (kSteps + 1));
      EXPECT_EQ(make(one.at("scheduler"), base_lrs)->values(step, 1).lr,
                run[static_cast<size_t>(step)]);
    }
  }
}

TEST(LrSchedule, KeepsItsLastValue) {
  for (const Json& one : golden_cases()) {
    const auto type = one.at("scheduler").at("type").get<std::string>();
    if (type == "LRRangeTest") continue;  // grows for ever
    const auto schedule = make(one.at("scheduler"), {1.0, 1.0});
    if (one.at("scheduler").at("params").contains("decay_lr_rate")) {
      EXPECT_LT(schedule->values(1'000'000'000, 0).lr, 1e-9);
    } else {
      EXPECT_EQ(schedule->values(kSteps + 1, 0).lr, schedule->values(1'000'000'000, 0).lr);
    }
  }
  const auto cosine =
      make(Json{{"type", "cosine"}, {"params", {{"total_num_steps", 10}, {"min_lr_ratio", 0.25}}}},
           {8.0});
  EXPECT_EQ(cosine->values(10, 0).lr, 2.0);
  EXPECT_EQ(cosine->values(15, 0).lr, 2.0);  // does not rise again
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
    const Json total = type == "WarmupLR" ? Json::object() : Json{{"total_num_steps", 9}};
    for (int fewer : {0, 1}) {
      Json few = total;
      Json two = total;
      few["warmup_num_steps"] = fewer;
      two["warmup_num_steps"] = 2;
      const auto schedule = make({{"type", type}, {"params", few}}, {0.5});
      const auto expected = make({{"type", type}, {"params", two}}, {0.5});
      for (int64_t step = 0; step < 9; ++step) {
        EXPECT_EQ(schedule->values(step, 0).lr, expected->values(step, 0).lr) << type << step;
      }
      EXPECT_GT(schedule->values(2, 0).lr, schedule->values(0, 0).lr) << type;
    }
  }
}

std::string problem_of(const SchedulerConfig& config, std::vector<double> base_lrs) {
  return error_of<ConfigError>([&] { make_lr_schedule(config, std::move(base_lrs)); });
}

TEST(LrSchedule, ErrorsNameTheKey) {
  EXPECT_THAT(problem_of({.type = "Cosine"}, {1}), HasSubstr("/scheduler/type: got 'Cosine'"));
  EXPECT_THAT(problem_of({.type = "cosine", .warmup_num_steps = 0}, {1}),
              HasSubstr("/scheduler/params/total_num_steps: missing"));
  EXPECT_THAT(problem_of({.type = "WarmupLR", .warmup_num_steps = -1}, {1}),
              HasSubstr("/scheduler/params/warmup_num_steps: missing, or \"auto\""));
  EXPECT_THAT(
      problem_of({.type = "linear", .total_num_steps = 999}, {1}),
      HasSubstr("/scheduler/params/warmup_num_steps: got 1000 steps of warm-up, expected at "
                "most total_num_steps, 999"));
  EXPECT_THAT(problem_of({.type = "WSD", .total_num_steps = 1500, .decay_num_steps = 501}, {1}),
              HasSubstr("/scheduler/params/decay_num_steps: got 501"));
  EXPECT_THAT(problem_of({.type = "WSD", .total_num_steps = 1500}, {1}),
              HasSubstr("/scheduler/params/decay_num_steps: missing"));
  const std::string cycle = problem_of({.type = "OneCycle"}, {1});
  EXPECT_THAT(cycle, HasSubstr("/scheduler/params/cycle_min_lr: missing"));
  EXPECT_THAT(cycle, HasSubstr("/scheduler/params/cycle_max_lr: missing"));
  EXPECT_THAT(problem_of({.type = "WarmupLR", .warmup_min_lr = {1, 2, 3}}, {1, 2}),
              HasSubstr("/scheduler/params/warmup_min_lr: got 3 values, expected 1, or 2"));
  const auto schedule = make_lr_schedule({.type = "WarmupLR"}, {1});
  EXPECT_THROW(schedule->values(0, 1), InternalError);
  EXPECT_THROW(schedule->values(-1, 0), InternalError);
}

}  // namespace
}  // namespace zerorun::testing
