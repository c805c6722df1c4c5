#include "config/json/reader.h"
#include "tests/config/support.h"

namespace zerorun {
namespace {

// The member that a key is bound to is its own, and no other key's (EveryKey has its value).
TEST(ParseConfig, EveryWorkingKeyHasAMemberOfItsOwn) {
  std::set<std::string> shared;
  for (const KeySpec* spec : leaf_keys()) {
    if (spec->binding.set == nullptr) continue;
    ConfigProblems problems("value");
    Config config;
    spec->binding.set(config, read_json(other_value(*spec), problems).value());
    for (const KeySpec* other : leaf_keys()) {
      if (other == spec || other->binding.get == nullptr) continue;
      if (other->binding.get(config) == other->binding.get(Config())) continue;
      shared.insert(fmt::format("{} {}", spec->name(), other->name()));
    }
  }
  EXPECT_THAT(shared, ElementsAre("datastates_ckpt async_save", "decoupled async_save",
                                  "err_beta reset_T", "mics_shard_size shard_group_size",
                                  "reset_T err_beta", "shard_group_size mics_shard_size"));
}

// Of keys whose value is more than that of a member with the same text.
TEST(ParseConfig, PutsKeysIntoTheirMembers) {
  const auto with = [](const char* pointer, const char* value) {
    return parse_config(document(pointer, value)).config;
  };
  EXPECT_EQ(with("/bfloat16/enabled", "true").precision.param_dtype, DType::bf16);
  EXPECT_TRUE(with("/fp16/auto_cast", "true").precision.auto_cast_inputs);
  EXPECT_FALSE(with("/bf16/check_grad_overflow", "false").precision.check_grad_overflow);
  EXPECT_EQ(with("/data_types/grad_accum_dtype", R"("torch.FLOAT32")").precision.grad_accum_dtype,
            DType::fp32);
  EXPECT_EQ(with("/communication_data_type", R"("fp16")").precision.communication_dtype,
            DType::fp16);
  EXPECT_EQ(with("/gradient_allreduce_op", R"("SUM")").precision.gradient_reduction,
            GradientReduction::sum);
  EXPECT_EQ(with("/optimizer/type", R"("adam")").optimizer.type, "Adam");
  const OptimizerConfig adam = with("/optimizer/params/betas", "[0.5, 0.75]").optimizer;
  EXPECT_EQ(std::pair(adam.beta1, adam.beta2), std::pair(0.5, 0.75));
  const OptimizerConfig muon = with("/optimizer/params/muon_lr", "0.5").optimizer;
  EXPECT_EQ(std::pair(muon.muon_lr, muon.lr), std::pair(0.5F, 0.5F));
  EXPECT_EQ(with("/scheduler/type", R"("warmuplr")").scheduler.type, "WarmupLR");
  EXPECT_THAT(with("/scheduler/params/warmup_min_lr", "[1, 2]").scheduler.warmup_min_lr,
              ElementsAre(1.0, 2.0));
  EXPECT_EQ(with("/zero_optimization/prefetch_bucket_size", "6").zero.prefetch_bucket_size, 6);
  EXPECT_EQ(with("/zero_optimization/zeropp_loco_param/err_beta", "0.5").zero.loco->err_beta, 0.5);
  EXPECT_EQ(with("/zero_optimization/mics_shard_size", "4").zero.shard_group_size, 4);
  EXPECT_TRUE(with("/checkpoint/writer/decoupled", "true").checkpoint.async_save);
  const CheckpointConfig saves = with("/datastates_ckpt", R"({"host_cache_size": 2})").checkpoint;
  EXPECT_EQ(std::pair(saves.async_save, saves.async_buffer_size),
            std::pair(true, int64_t{2} << 30));
  const ParsedConfig not_a_number =
      parse_config(R"({"datastates_ckpt": {"host_cache_size": NaN}})", "test.json");
  EXPECT_EQ(not_a_number.config.checkpoint.async_buffer_size, 0);
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

TEST(ParseConfig, ShardGroupsAndHpzAreNumbersOrTheRanksOfAHost) {
  const auto zero_of = [](const std::string& sections) {
    return parse_config("{" + sections + "}").config.zero;
  };
  EXPECT_EQ(zero_of(R"("zerorun":{"shard_group_size":"auto"})").shard_group_size, kRanksOfHost);
  EXPECT_EQ(zero_of(R"("zero_optimization":{"mics_shard_size":-1})").shard_group_size, 0);
  for (const auto& [keys, expected] : {std::pair(R"("zero_hpz_partition_size":8)", int64_t{8}),
                                       {R"("zero_hpz_partition_size":0)", 1},
                                       {R"("zero_hpz_partition_size":"auto")", kRanksOfHost},
                                       {R"("zero_hpz_partition_size":4,"mics_shard_size":8)", 4}}) {
    EXPECT_EQ(
        zero_of(fmt::format(R"("zero_optimization":{{"stage":3,{}}})", keys)).hpz_partition_size,
        expected);
  }
  for (const auto& [sections, problem] :
       {std::pair(R"("zerorun":{"shard_group_size":2})",
                  "2 needs /zero_optimization/stage 1, 2 or 3, got 0"),
        {R"("zero_optimization":{"mics_shard_size":2})",
         "2 needs /zero_optimization/stage 1, 2 or 3, got 0"},
        {R"("zero_optimization":{"mics_shard_size":4},"zerorun":{"shard_group_size":2})",
         "4 contradicts /zerorun/shard_group_size 2"},
        {R"("zero_optimization":{"mics_shard_size":4},"zerorun":{"shard_group_size":"auto"})",
         "4 contradicts /zerorun/shard_group_size \"auto\""},
        {R"("zero_optimization":{"stage":2,"zero_hpz_partition_size":8})",
         "8 needs /zero_optimization/stage 3, got 2"},
        {R"("zero_optimization":{"stage":3,"zero_hpz_partition_size":3,"mics_shard_size":8})",
         "got 3, expected a number that divides the ranks of a shard group, "
         "/zero_optimization/mics_shard_size 8"}}) {
    expect_problem(fmt::format("{{{}}}", sections), problem);
  }
}

TEST(ParseConfig, FewerBitsNeedWhatTheyAreUsedFor) {
  const auto zero_of = [](const std::string& keys) {
    return parse_config(R"({"zero_optimization":{)" + keys + "}}").config.zero;
  };
  const std::string quantized = R"("stage":3,"zero_quantized_gradients":true)";
  EXPECT_EQ(zero_of(quantized).loco, std::nullopt);
  EXPECT_EQ(zero_of(quantized + R"(,"zeropp_loco_param":{})").loco->reset_T, 1024);
  EXPECT_EQ(zero_of(quantized + R"(,"zeropp_loco_param":null)").loco, std::nullopt);
  EXPECT_FALSE(zero_of(R"("stage":0,"zero_quantized_weights":false)").quantized_weights);
  EXPECT_TRUE(zero_of(R"("stage":1,"zero_quantized_weights":true)").quantized_weights);
  for (const auto& [keys, problem] :
       {std::pair(R"("stage":0,"zero_quantized_weights":true)",
                  "true needs /zero_optimization/stage 1, 2 or 3, got 0"),
        {R"("stage":2,"zero_quantized_nontrainable_weights":true)",
         "stage 3, got 2, at which frozen parameters are not sent"},
        {R"("stage":2,"zero_quantized_weights":8)", "/zero_optimization/zero_quantized_weights"},
        {R"("zero_quantized_gradients":true)", "stage 1, 2 or 3, got 0"},
        {R"("stage":3,"zeropp_loco_param":{"err_beta":0.5})", "quantized_gradients to be true"}}) {
    expect_problem(fmt::format(R"({{"zero_optimization":{{{}}}}})", keys), problem);
  }
  expect_problem(R"({"zerorun":{"quantized_gradient_bits":6}})", "got 6, expected 4 or 8");
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
