#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "tests/config/support.h"

namespace zerorun {
namespace {

using testing::document;
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
      {"/data_types/grad_accum_dtype", R"("float")",
       [](const Config& c) { return c.precision.grad_accum_dtype == DType::fp32; }},
      {"/data_types/grad_accum_dtype", R"("torch.FLOAT32")",
       [](const Config& c) { return c.precision.grad_accum_dtype == DType::fp32; }},
      {"/fp16/enabled", "true",
       [](const Config& c) { return c.precision.param_dtype == DType::fp16; }},
      {"/fp16/auto_cast", "true", [](const Config& c) { return c.precision.auto_cast_inputs; }},
      {"/bf16/check_grad_overflow", "false",
       [](const Config& c) { return !c.precision.check_grad_overflow; }},
      {"/communication_data_type", R"("fp16")",
       [](const Config& c) { return c.precision.communication_dtype == DType::fp16; }},
      {"/prescale_gradients", "true",
       [](const Config& c) { return c.precision.prescale_gradients; }},
      {"/gradient_predivide_factor", "2",
       [](const Config& c) { return c.precision.gradient_predivide_factor == 2; }},
      {"/gradient_allreduce_op", R"("SUM")",
       [](const Config& c) { return c.precision.gradient_reduction == GradientReduction::sum; }},
      {"/zerorun/comm_timeout", "1.5", [](const Config& c) { return c.comm_timeout_s == 1.5; }},
      {"/zerorun/share_parameters", "false", [](const Config& c) { return !c.share_parameters; }},
  };
}

Effect scaler_effect(const char* pointer, const char* value,
                     bool (*is_seen)(const LossScalerOptions&)) {
  return {pointer, value, [is_seen](const Config& c) { return is_seen(c.precision.loss_scaler); }};
}

std::vector<Effect> scaler_effects() {
  using Options = LossScalerOptions;
  return {
      scaler_effect("/fp16/loss_scale", "128",
                    [](const Options& o) { return o.static_scale == 128; }),
      scaler_effect("/fp16/initial_scale_power", "8",
                    [](const Options& o) { return o.initial_scale_power == 8; }),
      scaler_effect("/fp16/loss_scale_window", "50",
                    [](const Options& o) { return o.window == 50; }),
      scaler_effect("/fp16/hysteresis", "3", [](const Options& o) { return o.hysteresis == 3; }),
      scaler_effect("/fp16/consecutive_hysteresis", "true",
                    [](const Options& o) { return o.consecutive_hysteresis; }),
      scaler_effect("/fp16/min_loss_scale", "0.5",
                    [](const Options& o) { return o.min_scale == 0.5; }),
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
      {"/optimizer/params/momentum", "0.5",
       [](const Config& c) { return c.optimizer.momentum == 0.5; }},
      {"/optimizer/params/dampening", "0.25",
       [](const Config& c) { return c.optimizer.dampening == 0.25; }},
      {"/optimizer/params/nesterov", "true", [](const Config& c) { return c.optimizer.nesterov; }},
      {"/optimizer/params/lr_decay", "0.5",
       [](const Config& c) { return c.optimizer.lr_decay == 0.5; }},
      {"/optimizer/params/eps_inside_sqrt", "true",
       [](const Config& c) { return c.optimizer.eps_inside_sqrt; }},
      {"/optimizer/params/max_coeff", "4",
       [](const Config& c) { return c.optimizer.max_coeff == 4.0F; }},
      {"/optimizer/params/min_coeff", "0.5",
       [](const Config& c) { return c.optimizer.min_coeff == 0.5F; }},
      {"/optimizer/params/muon_lr", "0.5",
       [](const Config& c) { return c.optimizer.muon_lr == 0.5F && c.optimizer.lr == 0.5F; }},
      {"/optimizer/params/adam_lr", "0.5",
       [](const Config& c) { return c.optimizer.adam_lr == 0.5F; }},
      {"/optimizer/params/ns_steps", "7",
       [](const Config& c) { return c.optimizer.ns_steps == 7; }},
  };
}

Effect schedule_effect(const char* name, const char* value,
                       bool (*is_seen)(const SchedulerConfig&)) {
  static std::set<std::string> pointers;  // keeps their memory
  const std::string& pointer = *pointers.insert(fmt::format("/scheduler/{}", name)).first;
  return {pointer.c_str(), value, [is_seen](const Config& c) { return is_seen(c.scheduler); }};
}

std::vector<Effect> warmup_effects() {
  using S = SchedulerConfig;
  return {
      schedule_effect("type", R"("warmuplr")", [](const S& s) { return s.type == "WarmupLR"; }),
      schedule_effect("params/warmup_min_lr", "[1, 2]",
                      [](const S& s) {
                        return s.warmup_min_lr == std::vector{1.0, 2.0};
                      }),
      schedule_effect("params/warmup_max_lr", "0.5",
                      [](const S& s) { return s.warmup_max_lr == std::vector{0.5}; }),
      schedule_effect("params/warmup_num_steps", "1e2",
                      [](const S& s) { return s.warmup_num_steps == 100; }),
      schedule_effect("params/warmup_type", R"("linear")",
                      [](const S& s) { return s.warmup_type == WarmupShape::linear; }),
      schedule_effect("params/total_num_steps", "5000",
                      [](const S& s) { return s.total_num_steps == 5000; }),
      schedule_effect("params/warmup_min_ratio", "0.5",
                      [](const S& s) { return s.warmup_min_ratio == 0.5; }),
      schedule_effect("params/cos_min_ratio", "0.5",
                      [](const S& s) { return s.cos_min_ratio == 0.5; }),
      schedule_effect("params/min_lr_ratio", "0.5",
                      [](const S& s) { return s.min_lr_ratio == 0.5; }),
      schedule_effect("params/decay_num_steps", "7",
                      [](const S& s) { return s.decay_num_steps == 7; }),
      schedule_effect("params/decay_type", R"("1-sqrt")",
                      [](const S& s) { return s.decay_type == DecayShape::one_minus_sqrt; }),
      schedule_effect("params/last_batch_iteration", "9",
                      [](const S& s) { return s.last_batch_iteration == 9; }),
  };
}

std::vector<Effect> cycle_effects() {
  using S = SchedulerConfig;
  return {
      schedule_effect("params/lr_range_test_min_lr", "0.5",
                      [](const S& s) { return s.range_test.min_lr == std::vector{0.5}; }),
      schedule_effect("params/lr_range_test_step_size", "7",
                      [](const S& s) { return s.range_test.step_size == 7; }),
      schedule_effect("params/lr_range_test_step_rate", "0.5",
                      [](const S& s) { return s.range_test.step_rate == 0.5; }),
      schedule_effect("params/lr_range_test_staircase", "true",
                      [](const S& s) { return s.range_test.staircase; }),
      schedule_effect("params/cycle_min_lr", "[0.5, 1]",
                      [](const S& s) {
                        return s.one_cycle.min_lr == std::vector{0.5, 1.0};
                      }),
      schedule_effect("params/cycle_max_lr", "0.5",
                      [](const S& s) { return s.one_cycle.max_lr == std::vector{0.5}; }),
      schedule_effect("params/decay_lr_rate", "0.5",
                      [](const S& s) { return s.one_cycle.decay_lr_rate == 0.5; }),
      schedule_effect("params/cycle_first_step_size", "7",
                      [](const S& s) { return s.one_cycle.first_step_size == 7; }),
      schedule_effect("params/cycle_second_step_size", "7",
                      [](const S& s) { return s.one_cycle.second_step_size == 7; }),
      schedule_effect("params/cycle_first_stair_count", "7",
                      [](const S& s) { return s.one_cycle.first_stair_count == 7; }),
      schedule_effect("params/cycle_second_stair_count", "7",
                      [](const S& s) { return s.one_cycle.second_stair_count == 7; }),
      schedule_effect("params/decay_step_size", "7",
                      [](const S& s) { return s.one_cycle.decay_step_size == 7; }),
      schedule_effect("params/cycle_momentum", "false",
                      [](const S& s) { return !s.one_cycle.cycle_momentum; }),
      schedule_effect("params/cycle_min_mom", "0.5",
                      [](const S& s) { return s.one_cycle.min_momentum == std::vector{0.5}; }),
      schedule_effect("params/cycle_max_mom", "0.5",
                      [](const S& s) { return s.one_cycle.max_momentum == std::vector{0.5}; }),
      schedule_effect("params/decay_mom_rate", "0.5",
                      [](const S& s) { return s.one_cycle.decay_momentum_rate == 0.5; }),
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
       [](const Config& c) { return c.zero.overlap_comm == true; }},
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

std::vector<Effect> offload_effects() {
  return {
      {"/zero_optimization/offload_optimizer/device", R"("cpu")",
       [](const Config& c) { return c.offload.optimizer.device == OffloadDevice::cpu; }},
      {"/zero_optimization/offload_optimizer/nvme_path", R"("/disk")",
       [](const Config& c) { return c.offload.optimizer.nvme_path == "/disk"; }},
      {"/zero_optimization/offload_optimizer/buffer_count", "3",
       [](const Config& c) { return c.offload.optimizer.buffer_count == 3; }},
      {"/zero_optimization/offload_optimizer/ratio", "0.25",
       [](const Config& c) { return c.offload.optimizer.ratio == 0.25; }},
      {"/zero_optimization/offload_param/device", R"("cpu")",
       [](const Config& c) { return c.offload.param.device == OffloadDevice::cpu; }},
      {"/zero_optimization/offload_param/nvme_path", R"("/disk")",
       [](const Config& c) { return c.offload.param.nvme_path == "/disk"; }},
      {"/zero_optimization/offload_param/buffer_count", "3",
       [](const Config& c) { return c.offload.param.buffer_count == 3; }},
      {"/zero_optimization/offload_param/buffer_size", "1000",
       [](const Config& c) { return c.offload.param.buffer_size == 1000; }},
      {"/zero_optimization/offload_param/max_in_cpu", "0",
       [](const Config& c) { return c.offload.param.max_in_cpu == 0; }},
      {"/zero_optimization/sub_group_size", "1000",
       [](const Config& c) { return c.offload.sub_group_size == 1000; }},
      {"/aio/block_size", "8192", [](const Config& c) { return c.offload.aio.block_size == 8192; }},
      {"/aio/queue_depth", "3", [](const Config& c) { return c.offload.aio.queue_depth == 3; }},
      {"/aio/intra_op_parallelism", "3",
       [](const Config& c) { return c.offload.aio.threads == 3; }},
  };
}

TEST(ParseConfig, PutsEveryWorkingKeyIntoItsMember) {
  const Config defaults;
  std::set<std::string_view> seen;
  for (const auto& effects :
       {batch_and_precision_effects(), scaler_effects(), optimizer_effects(), warmup_effects(),
        cycle_effects(), zero_effects(), offload_effects()}) {
    for (const Effect& effect : effects) {
      EXPECT_FALSE(effect.is_seen(defaults)) << effect.pointer << " could not be told apart";
      EXPECT_TRUE(effect.is_seen(parse_config(document(effect.pointer, effect.value)).config))
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
  EXPECT_EQ(parsed.config.zero.overlap_comm, std::nullopt);
  EXPECT_EQ(parsed.config.optimizer.lr, 1e-3F);
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

TEST(ParseConfig, TorchAdamOfAdamWDecaysWeightsAsPyTorch) {
  const auto decay_of = [](const std::string& type, const std::string& params) {
    const std::string optimizer = R"({"type":")" + type + R"(","params":)" + params + "}";
    return parse_config(R"({"optimizer":)" + optimizer + "}").config.optimizer.weight_decay;
  };
  EXPECT_EQ(decay_of("AdamW", R"({"torch_adam":true})"), 0.01F);
  EXPECT_EQ(decay_of("AdamW", R"({"torch_adam":true,"weight_decay":0})"), 0.0F);
  EXPECT_EQ(decay_of("AdamW", R"({"torch_adam":false})"), 0.0F);
  EXPECT_EQ(decay_of("Adam", R"({"torch_adam":true})"), 0.0F);
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

TEST(ParseConfig, AccumulationThatCannotHoldTheSumIsAProblem) {
  EXPECT_THAT(
      problems_of(R"({"bf16": {"enabled": true}, "communication_data_type": "fp32",
                              "data_types": {"grad_accum_dtype": "bf16"}})"),
      HasSubstr("/data_types/grad_accum_dtype (2:66): bf16, but gradients are reduced in fp32"));
  EXPECT_EQ(
      problems_of(R"({"bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "bf16"}})"),
      "");
}

TEST(ParseConfig, DividingTwiceBeforeTheSumIsAProblem) {
  EXPECT_THAT(problems_of(R"({"prescale_gradients": true, "gradient_predivide_factor": 2.0})"),
              HasSubstr("/gradient_predivide_factor (1:59): 2 contradicts /prescale_gradients"));
  EXPECT_EQ(problems_of(R"({"prescale_gradients": true, "gradient_predivide_factor": 1.0})"), "");
}

}  // namespace
}  // namespace zerorun
