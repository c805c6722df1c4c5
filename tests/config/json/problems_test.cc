#include "config/checks/suggest.h"
#include "tests/config/support.h"

namespace zerorun {
namespace {

using Rows = std::vector<std::pair<const char*, const char*>>;  // a text, and what is wrong

TEST(Problems, AreListedTogetherInTheOrderOfTheFile) {
  EXPECT_EQ(problems_of(R"({
  "gradient_clipp1ng": 1,
  "zero_optimization": {"stage": "two", "stag": 2},
  "lr": 1
})"),
            R"(test.json: 4 problems
  1. /gradient_clipp1ng (2:3): unknown key; did you mean "gradient_clipping"?
  2. /zero_optimization/stage (3:34): got "two", expected an integer from 0 to 3
  3. /zero_optimization/stag (3:41): unknown key; did you mean "stage"?
  4. /lr (4:3): unknown key; did you mean /optimizer/params/lr?)");
}

TEST(Problems, UnknownKeysGetTheNearestNameAnywhere) {
  for (const auto& [text, message] : Rows{
           {R"({"zero_optimisation": {}})", "\"zero_optimization\"?"},
           {R"({"stage": 3})", "did you mean /zero_optimization/stage?"},
           {R"({"Optimizer": {}})", "did you mean \"optimizer\"?"},
           {R"({"zero_optimization": {"reduce_bucket": 1}})",
            "did you mean \"reduce_bucket_size\"?"},
           {R"({"zero_optimization": {"reduce_buck": 1}})", "did you mean \"reduce_bucket_size\"?"},
           {R"({"zero_optimization": {"reflow": 1}})", "unknown key; remove it, or see"},
           {R"({"scheduler": {"params": {"warmup_steps": 1}}})",
            "did you mean \"warmup_num_steps\"?"},  // not "warmup_type", which is as near
           {R"({"optimizer": {"params": {"learning_rate": 1}}})",
            "/optimizer/params/learning_rate (1:27): unknown key; did you mean \"lr\"?"},
           {R"({"bf16": {"xyzzy": 1}})", "expected one of enabled,"},
           {R"({"xyzzy": 1})", "remove it (programs that import deepspeed ignore it, with"},
           {R"({"zero_optimization": {"xyzzy": 1}})", "`zerorun config schema`"},
           {R"({"zero_optimization/stage": 1})", "/zero_optimization~1stage (1:2): unknown key"}}) {
    expect_problem(text, message);
  }
}

TEST(NearestName, CountsTypingErrors) {
  EXPECT_EQ(edit_distance("Reduce-Bucket", "reduce_bucket", 3), 0U);
  EXPECT_EQ(edit_distance("stgae", "stage", 3), 1U);
  EXPECT_EQ(edit_distance("stag", "stage", 3), 1U);
  EXPECT_EQ(edit_distance("sttage", "stage", 3), 1U);
  EXPECT_EQ(edit_distance("sXaYe", "stage", 3), 2U);
  EXPECT_EQ(edit_distance("", "abc", 3), 3U);
  EXPECT_EQ(edit_distance("ca", "abc", 9), 3U);  // a swap is not split
  EXPECT_GT(edit_distance("optimizer", "scheduler", 2), 2U);
  EXPECT_GT(edit_distance("a", "abcdef", 2), 2U);
  const std::vector<std::string> names = {"model", "world_size", "fit", "recompute"};
  EXPECT_EQ(nearest_name("world-sise", names), "world_size");
  EXPECT_EQ(nearest_name("recmpt", names), "");
  EXPECT_EQ(nearest_name("abc", names), "");  // every letter would change
  EXPECT_EQ(nearest_name("", names), "");
}

TEST(Problems, ValuesSayWhatWasExpected) {
  for (const auto& [text, message] :
       Rows{{"[]", "top level (1:1): got [], expected an object"},
            {R"({"zero_optimization": {"stage": 4}})", "got 4, expected an integer from 0 to 3"},
            {R"({"zero_optimization": {"reduce_bucket_size": -1}})", "an integer of at least 0"},
            {R"({"zero_optimization": {"reduce_bucket_size": 2.5}})", "expected an integer"},
            {R"({"train_batch_size": 1e30})", "got 1e+30, expected"},
            {R"({"train_batch_size": 18446744073709551615})", "expected"},
            {R"({"train_batch_size": "8"})", "; remove the quotes"},
            {R"({"wall_clock_breakdown": "true"})", "remove the quotes"},
            {R"({"train_batch_size": "Auto"})", "did you mean \"auto\"?"},
            {R"({"gradient_clipping": Infinity})", "got Infinity"},
            {R"({"optimizer": {"params": {"lr": 1e39}}})", "fits fp32"},
            {R"({"gradient_clipping": null})", "expected a number of at least 0; remove the key"},
            {R"({"zerorun": {"comm_timeout": 0}})", "a number above 0"},
            {R"({"optimizer": {"params": {"max_grad_norm": 1}}})", "use /gradient_clipping"},
            {R"({"optimizer": {"type": "OneBitAdam"}})",
             R"(got "OneBitAdam", not supported yet by zerorun )"},
            {R"({"scheduler": {"type": "StepLR"}})",
             R"(got "StepLR", a class of torch, which only programs that import deepspeed can )"},
            {R"({"optimizer": {"type": "AdamWW"}})", R"( (did you mean "AdamW"?))"},
            {R"({"bf16": true})", R"(got true, expected an object; write {"enabled": true})"},
            {R"({"zero_optimization": {"stage": 1, "offload_optimizer": true}})",
             R"(got true, expected an object; write {"device": "cpu"})"},
            {R"({"zero_optimization": {"stage": 1, "offload_optimizer": false}})",
             R"(expected an object; write {"device": "none"})"},
            {R"({"fp16": {"enabled": "True"}})", "true or false in lower case, without quotes"},
            {"{\"fp16\": {\n\"enabled\": False,\n\"hysteresis\": 2}}",
             "true or false in lower case, without quotes"}}) {
    expect_problem(text, message);
  }
  for (
      const char* once :
      {R"({"zero_optimization": {"stage": "3", "offload_param": {"device": "cpu"}}})",
       R"({"elasticity": {"enabled": true, "max_train_batch_size": 0, "micro_batch_sizes": 1}})"}) {
    EXPECT_THAT(problems_of(once), Not(ContainsRegex("missing|needs /zero"))) << once;
  }
  for (const char* betas :
       {"[0.9]", "[0.9, 1.0]", "[-0.1, 0.9]", "[0.9, 0.9999999999]", R"(["0.9", 0.9])", "0.9"}) {
    expect_problem(fmt::format(R"({{"optimizer": {{"params": {{"betas": {}}}}}}})", betas),
                   "expected an array of two numbers from 0 to below 1");
  }
}

TEST(Problems, ContradictionsNameBothSides) {
  for (const auto& [text, message] :
       Rows{{R"({"zero_optimization": {"offload_param": {"device": "cpu"}}})",
             "/zero_optimization/offload_param/device (1:52): \"cpu\" needs "
             "/zero_optimization/stage 3, got 0"},
            {R"({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}})",
             "needs /zero_optimization/stage 1, 2 or 3, got 0"},
            {R"({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme"}}})",
             "needs /zero_optimization/offload_optimizer/nvme_path"},
            {R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}})",
             "needs /zero_optimization/offload_param/nvme_path"},
            {R"({"zero_optimization": {"stage": 2, "offload_optimizer":
                 {"device": "cpu", "super_offload": true}}})",
             "not supported yet"},
            {R"({"aio": {"block_size": 5000}})",
             "/aio/block_size (1:24): got 5000, expected a multiple of 4096"},
            {R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})",
             "/fp16/enabled (1:22): true contradicts /bf16/enabled at 1:49"},
            {R"({"bf16": {"enabled": false}, "zerorun": {"train": {"dtype": "bf16"}}})",
             "/zerorun/train/dtype (1:61): \"bf16\" contradicts /bf16/enabled false at 1:22"},
            {R"({"fp16": {"enabled": true}, "zerorun": {"train": {"dtype": "bf16"}}})",
             "/zerorun/train/dtype (1:60): \"bf16\" contradicts /fp16/enabled true at 1:22"},
            {R"({"train_micro_batch_size_per_gpu": 2, "zerorun": {"train": {"micro_batch": 3}}})",
             "3 contradicts /train_micro_batch_size_per_gpu 2 at 1:36"},
            {R"({"data_types": {"param_dtype": "bf16"}})", "which make parameters fp32"},
            {R"({"optimizer": {"type": "Muon", "params": {"muon_heads": {"*.qkv": 0}}}})",
             "'*.qkv': got 0, expected an integer of at least 1"},
            {R"({"bf16": {"enabled": true, "bf16_optimizer_states": true}})",
             "(1:53): true needs /bf16/bf16_master_weights_and_grads to be true too"},
            {R"({"optimizer": {"type": "Lamb", "params": {"min_coeff": 11}}})",
             "min_coeff (1:56): got 11, expected at most /optimizer/params/max_coeff, which is 10"},
            {R"({"optimizer": {"type": "Lamb", "params": {"max_coeff": 0.001}}})",
             "expected at least /optimizer/params/min_coeff, which is 0.01"},
            {R"({"fp16": {"enabled": true, "min_loss_scale": 64, "initial_scale_power": 5}})",
             "/fp16/min_loss_scale (1:46): got 64, expected at most 2^5 = 32, the initial scale"},
            {R"({"fp16": {"enabled": true, "min_loss_scale": 0}})",
             "/fp16/min_loss_scale (1:46): got 0, expected a number above 0"}}) {
    expect_problem(text, message);
  }
  for (const char* right :
       {R"({"data_types": {"param_dtype": "bf16"}, "bf16": {"enabled": true}})",
        R"({"bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "fp16"}})",
        R"({"prescale_gradients": true, "gradient_predivide_factor": 2.0})",
        R"({"optimizer": {"type": "Lamb", "params": {"min_coeff": 2, "max_coeff": 2}}})",
        R"({"fp16": {"enabled": true, "min_loss_scale": 32, "initial_scale_power": 5}})",
        R"({"fp16": {"enabled": true, "loss_scale": 512, "min_loss_scale": 0}})",
        R"({"fp16": {"enabled": false, "min_loss_scale": 0}})"}) {
    EXPECT_EQ(problems_of(right), "");
  }
}

TEST(Problems, OffloadIsReadInItsOldForm) {
  const auto offload_of = [](const std::string& keys) {
    return parse_config(R"({"zero_optimization": {"stage": 3, )" + keys + "}").config.offload;
  };
  const OffloadConfig old = offload_of(R"("cpu_offload": true, "cpu_offload_param": true})");
  EXPECT_EQ(old.optimizer.device, OffloadDevice::cpu);
  EXPECT_EQ(old.param.device, OffloadDevice::cpu);
  const OffloadConfig other = offload_of(R"("offload_optimizer": {"device": "NVMe",
      "nvme_path": "/disk"}}, "aio": {"thread_count": 3})");
  EXPECT_EQ(other.optimizer.device, OffloadDevice::nvme);
  EXPECT_EQ(other.aio.threads, 3);
}

TEST(Problems, AConfigurationOfAccelerateIsOneProblem) {
  const std::string problems = problems_of(
      "compute_environment: LOCAL_MACHINE\ndeepspeed_config:\n  zero_stage: 3\nuse_cpu: false\n");
  EXPECT_THAT(problems, HasAll("1 problem\n", "a configuration of accelerate"));
}

TEST(Problems, ASettingThatIsGivenTwiceNamesBothPlaces) {
  for (const auto& [text, message] :
       Rows{{"{\n \"steps_per_print\": 1,\n \"steps_per_print\": 2}",
             "/steps_per_print (3:2): given twice, first at 2:2"},
            {R"({"amp": {"enabled": false, "a": {"b": 1, "b": 1}}})",
             "/amp/a/b (1:42): given twice, first at 1:34"},
            {"{\"zero_optimization\": {\n\"prefetch_bucket_size\": 1,\n"
             "\"stage3_prefetch_bucket_size\": 1}}",
             "(3:1): the same setting as /zero_optimization/prefetch_bucket_size at 2:1"},
            {R"({"bf16": {}, "bfloat16": {}})", "the same setting as /bf16 at 1:2"},
            {R"({"zero_optimization": {"cpu_offload": false, "offload_optimizer": {"device":
            "none"}}})",
             "replaced by /zero_optimization/offload_optimizer/device"}}) {
    expect_problem(text, message);
  }
  const ParsedConfig parsed =
      parse_config(R"({"zero_optimization": {"stage3_gather_fp16_weights_on_model_save": true}})");
  EXPECT_THAT(parsed.warnings, ElementsAre(HasSubstr(
                                   "stage3_gather_fp16_weights_on_model_save (1:24) is deprecated; "
                                   "use /zero_optimization/stage3_gather_16bit_weights")));
}

TEST(Problems, LongListsAndTextsAreCut) {
  std::string text = "{";
  for (int i = 0; i < 500; ++i) text += fmt::format("\"unknown_{}\": 1,", i);
  EXPECT_THAT(problems_of(text + "}"), HasAll("test.json: 500 problems", "... and 450 more"));
  const std::string key(100'000, 'k');
  EXPECT_LT(problems_of(fmt::format("{{\"{}\": 1}}", key)).size(), 1000U);
  EXPECT_LT(problems_of(fmt::format("{{\"steps_per_print\": \"{}\"}}", key)).size(), 1000U);
  expect_problem("{\"a\\u001b[31m\\nb\": 1}", "/a\\x1b[31m\\x0ab (1:2)");
}

}  // namespace
}  // namespace zerorun
