#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "tests/config/support.h"

namespace zerorun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::nested;
using testing::problems_of;

struct Effect {
  const char* pointer;
  const char* value;
  std::function<bool(const Config&)> is_seen;
};

std::vector<Effect> batch_and_precision_effects() {
  return {
      {"/train_batch_size", "32", [](const Config& c) { return c.batch.train_batch_size == 32; }},
      {"/train_micro_batch_size_per_gpu", "4",
       [](const Config& c) { return c.batch.micro_batch_size == 4; }},
      {"/gradient_accumulation_steps", "8",
       [](const Config& c) { return c.batch.accumulation_steps == 8; }},
      {"/gradient_clipping", "0.5", [](const Config& c) { return c.gradient_clipping == 0.5; }},
      {"/steps_per_print", "10", [](const Config& c) { return c.steps_per_print == 10; }},
      {"/wall_clock_breakdown", "true", [](const Config& c) { return c.wall_clock_breakdown; }},
      {"/bf16/enabled", "true",
       [](const Config& c) { return c.precision.param_dtype == DType::bf16; }},
      {"/bfloat16/enabled", "true",
       [](const Config& c) { return c.precision.param_dtype == DType::bf16; }},
      {"/data_types/grad_accum_dtype", R"("bfloat16")",
       [](const Config& c) { return c.precision.grad_accum_dtype == DType::bf16; }},
      {"/data_types/grad_accum_dtype", R"("torch.FLOAT32")",
       [](const Config& c) { return c.precision.grad_accum_dtype == DType::fp32; }},
      {"/zerorun/comm_timeout", "1.5", [](const Config& c) { return c.comm_timeout_s == 1.5; }},
      {"/zerorun/share_parameters", "false", [](const Config& c) { return !c.share_parameters; }},
  };
}

std::vector<Effect> optimizer_effects() {
  return {
      {"/optimizer/type", R"("adam")", [](const Config& c) { return c.optimizer.type == "Adam"; }},
      {"/optimizer/params/lr", "0.25", [](const Config& c) { return c.optimizer.lr == 0.25F; }},
      {"/optimizer/params/betas", "[0.5, 0.75]",
       [](const Config& c) { return c.optimizer.beta1 == 0.5F && c.optimizer.beta2 == 0.75F; }},
      {"/optimizer/params/eps", "0.125", [](const Config& c) { return c.optimizer.eps == 0.125F; }},
      {"/optimizer/params/weight_decay", "1",
       [](const Config& c) { return c.optimizer.weight_decay == 1.0F; }},
      {"/optimizer/params/bias_correction", "false",
       [](const Config& c) { return !c.optimizer.bias_correction; }},
      {"/optimizer/params/adam_w_mode", "false",
       [](const Config& c) { return !c.optimizer.adam_w_mode; }},
  };
}

std::vector<Effect> zero_effects() {
  return {
      {"/zero_optimization/stage", "2", [](const Config& c) { return c.zero.stage == 2; }},
      {"/zero_optimization/reduce_bucket_size", "5e7",
       [](const Config& c) { return c.zero.reduce_bucket_size == 50'000'000; }},
      {"/zero_optimization/allgather_bucket_size", "4",
       [](const Config& c) { return c.zero.allgather_bucket_size == 4; }},
      {"/zero_optimization/overlap_comm", "true",
       [](const Config& c) { return c.zero.overlap_comm; }},
      {"/zero_optimization/stage3_prefetch_bucket_size", "5",
       [](const Config& c) { return c.zero.prefetch_bucket_size == 5; }},
      {"/zero_optimization/prefetch_bucket_size", "6",
       [](const Config& c) { return c.zero.prefetch_bucket_size == 6; }},
      {"/zero_optimization/param_persistence_threshold", "0",
       [](const Config& c) { return c.zero.param_persistence_threshold == 0; }},
      {"/zero_optimization/stage3_param_persistence_threshold", "7.0",
       [](const Config& c) { return c.zero.param_persistence_threshold == 7; }},
      {"/zero_optimization/stage3_model_persistence_threshold", "8",
       [](const Config& c) { return c.zero.model_persistence_threshold == 8; }},
      {"/zero_optimization/stage3_max_live_parameters", "1e12",
       [](const Config& c) { return c.zero.max_live_parameters == 1'000'000'000'000; }},
      {"/zero_optimization/stage3_max_reuse_distance", "10",
       [](const Config& c) { return c.zero.max_reuse_distance == 10; }},
  };
}

TEST(ParseConfig, PutsEveryWorkingKeyIntoItsMember) {
  const Config defaults;
  std::set<std::string_view> seen;
  for (const auto& effects : {batch_and_precision_effects(), optimizer_effects(), zero_effects()}) {
    for (const Effect& effect : effects) {
      EXPECT_FALSE(effect.is_seen(defaults)) << effect.pointer << " could not be told apart";
      EXPECT_TRUE(effect.is_seen(parse_config(nested(effect.pointer, effect.value)).config))
          << effect.pointer;
      seen.insert(effect.pointer);
    }
  }
  for (const KeySpec* spec : testing::leaf_keys()) {
    EXPECT_EQ(seen.contains(spec->pointer), spec->binding.set != nullptr) << spec->pointer;
  }
}

TEST(ParseConfig, AnEmptyFileGivesTheDefaults) {
  const ParsedConfig parsed = parse_config("{}", "empty.json");
  EXPECT_EQ(parsed.config.gradient_clipping, 1.0);
  EXPECT_EQ(parsed.config.zero.stage, 0);
  EXPECT_FALSE(parsed.config.zero.overlap_comm);
  EXPECT_EQ(parsed.config.optimizer.lr, 1e-3F);
  EXPECT_EQ(parsed.config.source, "empty.json");
  EXPECT_EQ(parsed.config.train_options, "{}");
  EXPECT_THAT(parsed.warnings, IsEmpty());
  for (const ConfigValue& value : parsed.values) EXPECT_TRUE(value.is_default) << value.pointer;
}

TEST(ParseConfig, OverlapFollowsTheStageUnlessItIsGiven) {
  EXPECT_TRUE(parse_config(R"({"zero_optimization":{"stage":3}})").config.zero.overlap_comm);
  EXPECT_FALSE(parse_config(R"({"zero_optimization":{"stage":2}})").config.zero.overlap_comm);
  EXPECT_FALSE(parse_config(R"({"zero_optimization":{"stage":3,"overlap_comm":false}})")
                   .config.zero.overlap_comm);
  EXPECT_TRUE(parse_config(R"({"zero_optimization":{"stage":3,"overlap_comm":"auto"}})")
                  .config.zero.overlap_comm);
}

TEST(ParseConfig, OptimizerNamesIgnoreCase) {
  EXPECT_EQ(parse_config(R"({"optimizer": {"type": "ADAMW"}})").config.optimizer.type, "AdamW");
  EXPECT_EQ(parse_config(R"({"optimizer": {"type": "adam"}})").config.optimizer.type, "Adam");
}

TEST(ParseConfig, StepsPerPrintMayBeInfinite) {
  for (const char* text : {"Infinity", R"("inf")", R"("Infinity")"}) {
    const auto config = parse_config(fmt::format(R"({{"steps_per_print": {}}})", text)).config;
    EXPECT_EQ(config.steps_per_print, std::numeric_limits<int64_t>::max()) << text;
  }
  EXPECT_EQ(parse_config(R"({"steps_per_print": null})").config.steps_per_print, std::nullopt);
  EXPECT_THAT(problems_of(R"({"steps_per_print": -Infinity})"), HasSubstr("got -Infinity"));
  EXPECT_THAT(problems_of(R"({"steps_per_print": NaN})"), HasSubstr("got NaN"));
}

TEST(ParseConfig, KeepsTrainOptionsAsCheckedJson) {
  const ParsedConfig parsed = parse_config(R"({"zerorun": {"train": {
    "data": ["a.txt", "b/"], "seq_len": 1e2, "recompute": true, "init": null, "sample": "Hi \"you\""
  }}})");
  const auto options = nlohmann::json::parse(parsed.config.train_options);
  EXPECT_EQ(options, nlohmann::json({{"data", {"a.txt", "b/"}},
                                     {"seq_len", 100},
                                     {"recompute", true},
                                     {"sample", "Hi \"you\""}}));
  EXPECT_THAT(problems_of(R"({"zerorun": {"train": {"data": ["a", 1]}}})"),
              HasSubstr(R"(got ["a",1], expected a string or an array of strings)"));
}

TEST(ParseConfig, ReadsTheBooleanFormOfZero) {
  const ParsedConfig parsed = parse_config(R"({"zero_optimization": true})");
  EXPECT_EQ(parsed.config.zero.stage, 1);
  EXPECT_THAT(parsed.warnings, ElementsAre(HasSubstr("deprecated")));
  EXPECT_EQ(parse_config(R"({"zero_optimization": false})").config.zero.stage, 0);
}

TEST(ParseConfig, BlocksMayBeEmptyOrNull) {
  for (const KeySpec* spec : key_table().keys()) {
    if (!spec->is_block()) continue;
    EXPECT_EQ(problems_of(nested(spec->pointer, "{}")), "") << spec->pointer;
    EXPECT_EQ(problems_of(nested(spec->pointer, "null")), "") << spec->pointer;
    EXPECT_THAT(problems_of(nested(spec->pointer, "[]")), HasSubstr("got [], expected"));
  }
}

TEST(ParseConfig, UnsupportedBlocksAreFineWhileTheyAreOff) {
  EXPECT_EQ(problems_of(R"({"amp": {"enabled": false, "opt_level": "O1"}})"), "");
  EXPECT_EQ(problems_of(R"({"amp": {"enabled": "auto", "opt_level": "auto"}})"), "");
  EXPECT_EQ(problems_of(R"({"compression_training": {}})"), "");
  EXPECT_THAT(problems_of(R"({"amp": {"enabled": true}})"), HasSubstr("/amp (1:9): got an object"));
  EXPECT_THAT(problems_of(R"({"amp": {"opt_level": "O1"}})"), HasSubstr("/amp (1:9)"));
  EXPECT_THAT(problems_of(R"({"zero_optimization": {"zenflow": {"topk_ratio": 0.2}}})"),
              HasSubstr("/zero_optimization/zenflow (1:35): got an object, not supported yet"));
}

TEST(LoadConfig, NamesAFileItCannotRead) {
  const std::filesystem::path folder = ::testing::TempDir();
  EXPECT_THROW(load_config(folder / "no_such_file.json"), ConfigError);
  EXPECT_THROW(load_config(folder), ConfigError);
  const std::string path = folder / "zerorun_load_config.json";
  std::ofstream(path) << R"({"zero_optimization": {"stage": 2}})";
  const ParsedConfig parsed = load_config(path);
  EXPECT_EQ(parsed.config.zero.stage, 2);
  EXPECT_EQ(parsed.config.source, path);
  std::ofstream(path) << "{\n";
  try {
    load_config(path);
    FAIL() << "broken JSON was accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr(path + ": 1 problem"));
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace zerorun
