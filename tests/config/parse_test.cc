#include "config/json/reader.h"
#include "tests/common.h"
#include "tests/config/key_effects.h"
#include "tests/config/support.h"

namespace zerorun {
namespace {

TEST(ParseConfig, PutsEveryWorkingKeyIntoItsMember) {
  const Config defaults;
  std::set<std::string_view> seen;
  for (const testing::Effect& effect : testing::kEffects) {
    EXPECT_FALSE(effect.is_seen(defaults)) << effect.pointer << " could not be told apart";
    EXPECT_TRUE(effect.is_seen(parse_config(document(effect.pointer, effect.value)).config))
        << effect.pointer;
    seen.insert(effect.pointer);
  }
  for (const KeySpec* spec : leaf_keys()) {
    EXPECT_EQ(seen.contains(spec->pointer), spec->binding.set != nullptr) << spec->pointer;
  }
}

TEST(ParseConfig, AnEmptyFileGivesTheDefaults) {
  const ParsedConfig parsed = parse_config("{}", "empty.json");
  EXPECT_EQ(parsed.config.zero.overlap_comm, std::nullopt);
  EXPECT_EQ(parsed.config.source, "empty.json");
  EXPECT_EQ(parsed.config.train_options, "{}");
  EXPECT_THAT(parsed.warnings, IsEmpty());
  for (const ConfigValue& value : parsed.values) EXPECT_TRUE(value.is_default) << value.pointer;
}

TEST(ParseConfig, OverlapFollowsStageAndDeviceUnlessItIsGiven) {
  const auto overlap_of = [](const std::string& zero) {
    return parse_config(R"({"zero_optimization":)" + zero + "}").config.zero.overlap_comm;
  };
  EXPECT_EQ(overlap_of(R"({"stage":3})"), true);
  EXPECT_EQ(overlap_of(R"({"stage":2})"), std::nullopt);
  EXPECT_EQ(overlap_of(R"({"stage":2,"overlap_comm":false})"), false);
  EXPECT_EQ(overlap_of(R"({"stage":3,"overlap_comm":false})"), false);
  EXPECT_EQ(overlap_of(R"({"stage":3,"overlap_comm":"auto"})"), true);
}

TEST(ParseConfig, AShardGroupIsANumberOrTheRanksOfAHost) {
  const auto size_of = [](const std::string& sections) {
    return parse_config("{" + sections + "}").config.zero.shard_group_size;
  };
  EXPECT_EQ(size_of(R"("zerorun":{"shard_group_size":"auto"})"), kRanksOfHost);
  EXPECT_EQ(size_of(R"("zero_optimization":{"mics_shard_size":-1})"), 0);
  for (const char* key :
       {R"("zerorun":{"shard_group_size":2})", R"("zero_optimization":{"mics_shard_size":2})"}) {
    expect_problem("{" + std::string(key) + "}",
                   "2 needs /zero_optimization/stage 1, 2 or 3, got 0");
  }
  expect_problem(R"({"zero_optimization":{"mics_shard_size":4},"zerorun":{"shard_group_size":2}})",
                 "4 contradicts /zerorun/shard_group_size 2");
}

TEST(ParseConfig, HpzIsOfStage3) {
  const auto size_of = [](const std::string& size, int stage = 3) {
    const std::string zero = fmt::format(R"("stage":{},"zero_hpz_partition_size":{})", stage, size);
    return parse_config(R"({"zero_optimization":{)" + zero + "}}").config.zero.hpz_partition_size;
  };
  EXPECT_EQ(size_of("8"), 8);
  EXPECT_EQ(size_of("0"), 1);
  EXPECT_EQ(size_of("\"auto\""), kRanksOfHost);
  EXPECT_EQ(size_of("1", 2), 1);
  expect_problem(R"({"zero_optimization":{"stage":2,"zero_hpz_partition_size":8}})",
                 "8 needs /zero_optimization/stage 3, got 2");
  const auto in_groups = [](int second, const std::string& group) {
    return fmt::format(R"({{"zero_optimization":{{"stage":3,"zero_hpz_partition_size":{}{}}}}})",
                       second, group);
  };
  expect_problem(in_groups(3, R"(,"mics_shard_size":8)"),
                 "got 3, expected a number that divides the ranks of a shard group, "
                 "/zero_optimization/mics_shard_size 8");
  EXPECT_EQ(parse_config(in_groups(4, R"(,"mics_shard_size":8)")).config.zero.hpz_partition_size,
            4);
}

TEST(ParseConfig, FewerBitsNeedWhatTheyAreUsedFor) {
  const auto zero_of = [](const std::string& keys) {
    return parse_config(R"({"zero_optimization":{)" + keys + "}}").config.zero;
  };
  EXPECT_EQ(zero_of(R"("stage":3,"zero_quantized_gradients":true)").loco, std::nullopt);
  const std::string loco = R"("zero_quantized_gradients":true,"zeropp_loco_param":{})";
  EXPECT_EQ(zero_of(R"("stage":3,)" + loco).loco->reset_T, 1024);
  const std::string none = R"("zero_quantized_gradients":true,"zeropp_loco_param":null)";
  EXPECT_EQ(zero_of(R"("stage":3,)" + none).loco, std::nullopt);
  EXPECT_FALSE(zero_of(R"("stage":0,"zero_quantized_weights":false)").quantized_weights);
  const auto problems = [](const std::string& keys) {
    return problems_of(R"({"zero_optimization":{)" + keys + "}}");
  };
  for (const int stage : {1, 2, 3}) {
    const std::string keys = fmt::format(R"("stage":{},"zero_quantized_weights":true)", stage);
    EXPECT_TRUE(zero_of(keys).quantized_weights) << stage;
  }
  EXPECT_THAT(problems(R"("stage":0,"zero_quantized_weights":true)"),
              HasSubstr("true needs /zero_optimization/stage 1, 2 or 3, got 0"));
  EXPECT_THAT(problems(R"("stage":2,"zero_quantized_nontrainable_weights":true)"),
              HasSubstr("stage 3, got 2, at which frozen parameters are not sent"));
  EXPECT_THAT(problems(R"("stage":2,"zero_quantized_weights":8)"),
              HasSubstr("/zero_optimization/zero_quantized_weights"));
  EXPECT_THAT(problems(R"("zero_quantized_gradients":true)"), HasSubstr("stage 1, 2 or 3, got 0"));
  expect_problem(R"({"zerorun":{"quantized_gradient_bits":6}})", "got 6, expected 4 or 8");
  EXPECT_THAT(problems(R"("stage":3,"zeropp_loco_param":{"err_beta":0.5})"),
              HasSubstr("zero_quantized_gradients to be true"));
}

TEST(ParseConfig, TorchAdamOfAdamWDecaysWeightsAsPyTorch) {
  const auto decay_of = [](const std::string& type, const std::string& params) {
    const std::string optimizer = R"({"type":")" + type + R"(","params":)" + params + "}";
    return parse_config(R"({"optimizer":)" + optimizer + "}").config.optimizer.weight_decay;
  };
  EXPECT_EQ(decay_of("AdamW", R"({"torch_adam":true})"), 0.01F);
  EXPECT_EQ(decay_of("AdamW", R"({"torch_adam":true,"weight_decay":0})"), 0.0F);
  EXPECT_EQ(decay_of("AdamW", R"({"torch_adam":false})"), 0.0F);
  EXPECT_EQ(decay_of("Adam", R"({"torch_adam":true})"), 0.01F);  // AdamW, as adam_w_mode has it
  EXPECT_EQ(decay_of("Adam", R"({"torch_adam":true,"adam_w_mode":false})"), 0.0F);
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
  expect_problem(R"({"steps_per_print": -Infinity})", "got -Infinity");
  expect_problem(R"({"steps_per_print": NaN})", "got NaN");
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
  expect_problem(R"({"zerorun": {"train": {"data": ["a", 1]}}})",
                 R"(got ["a",1], expected a string or an array of strings)");
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
    expect_problem(nested(spec->pointer, "[]"), "got [], expected");
  }
}

TEST(ParseConfig, UnsupportedBlocksAreFineWhileTheyAreOff) {
  EXPECT_EQ(problems_of(R"({"amp": {"enabled": false, "opt_level": "O1"}})"), "");
  EXPECT_EQ(problems_of(R"({"amp": {"enabled": "auto", "opt_level": "auto"}})"), "");
  EXPECT_EQ(problems_of(R"({"compression_training": {}})"), "");
  expect_problem(R"({"amp": {"enabled": true}})", "/amp (1:9): got an object");
  expect_problem(R"({"amp": {"opt_level": "O1"}})", "/amp (1:9)");
  expect_problem(R"({"zero_optimization": {"zenflow": {"topk_ratio": 0.2}}})",
                 "/zero_optimization/zenflow (1:35): got an object, not supported yet");
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
  EXPECT_THAT([&] { load_config(path); },
              ThrowsMessage<ConfigError>(HasSubstr(path + ": 1 problem")));
  std::filesystem::remove(path);
}

TEST(ParseConfig, GradientsAreKeptInAnyDtype) {
  for (const char* kept : {"fp32", "bf16", "fp16"}) {
    EXPECT_EQ(problems_of(fmt::format(
                  R"({{"bf16": {{"enabled": true}}, "data_types": {{"grad_accum_dtype": "{}"}}}})",
                  kept)),
              "");
  }
}

// DeepSpeed divides by the number of ranks then, and reads no factor.
TEST(ParseConfig, PrescalingDividesAllBeforeTheSum) {
  EXPECT_EQ(problems_of(R"({"prescale_gradients": true, "gradient_predivide_factor": 2.0})"), "");
}

TEST(ConfigReader, WhatIsForPyTorchModelsIsAnErrorForProgramsInCpp) {
  for (const auto& [pointer, value] :
       {std::pair("/sequence_parallel_size", "2"), std::pair("/data_parallel_size", "1"),
        std::pair("/torch_autocast/enabled", "true"),
        std::pair("/managed_gradient_accumulation", "false")}) {
    const std::string text = nested(pointer, value);
    expect_problem(text, fmt::format("{} (", pointer));
    expect_problem(text, "for PyTorch models (zerorun.initialize) only");
    const ParsedConfig parsed = parse_config_for(ConfigReader::pytorch, text, "test.json");
    EXPECT_EQ(find_value(parsed, pointer)->value, value);
  }
  EXPECT_EQ(problems_of(R"({"torch_autocast": {"enabled": false, "dtype": "float16"}})"), "");
  EXPECT_EQ(problems_of(R"({"seq_parallel_communication_data_type": "bf16"})"), "");
  EXPECT_EQ(problems_of(R"({"sequence_parallel_size": 1})"), "");
}

}  // namespace
}  // namespace zerorun
