#include "config/derive.h"
#include "config/docs/report.h"
#include "config/json/reader.h"
#include "tests/config/support.h"

namespace zerorun {
namespace {

// The documentation of Hugging Face's Trainer has this file.
constexpr const char* kAuto = R"({
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "weight_decay": "auto"}},
  "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto",
    "warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}},
  "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto",
    "stage3_max_live_parameters": "auto"},
  "train_batch_size": "auto", "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 2
})";

TEST(ResolveAuto, FollowsTheModelTheRunAndTheWorldSize) {
  ParsedConfig parsed = parse_config(kAuto);
  resolve_auto(parsed,
               {.world_size = 3, .hidden_size = 1000, .total_steps = 500, .warmup_steps = 20});
  const Config& config = parsed.config;
  EXPECT_EQ(config.zero.reduce_bucket_size, 1'000'000);
  EXPECT_EQ(config.zero.prefetch_bucket_size, 900'000);
  EXPECT_EQ(config.zero.param_persistence_threshold, 10'000);
  EXPECT_EQ(config.zero.max_live_parameters, 1'000'000'000);
  EXPECT_EQ(config.scheduler.total_num_steps, 500);
  EXPECT_EQ(config.scheduler.warmup_num_steps, 20);
  EXPECT_THAT(config.scheduler.warmup_min_lr, ElementsAre(0.0));
  EXPECT_THAT(config.scheduler.warmup_max_lr, ElementsAre(3e-4));
  EXPECT_EQ(config.batch.train_batch_size, 24);
  const ConfigValue* bucket = find_value(parsed, "/zero_optimization/reduce_bucket_size");
  EXPECT_EQ(bucket->value, "1000000");
  EXPECT_TRUE(bucket->is_auto);
}

TEST(ResolveAuto, KeepsDefaultsWithoutAModelAndWhatIsGiven) {
  ParsedConfig parsed = parse_config(R"({"zero_optimization": {"reduce_bucket_size": "auto",
                                         "stage3_prefetch_bucket_size": 7}})");
  resolve_auto(parsed, {.hidden_size = 0});
  EXPECT_EQ(parsed.config.zero.reduce_bucket_size, 500'000'000);
  resolve_auto(parsed, {.hidden_size = 8});
  EXPECT_EQ(parsed.config.zero.reduce_bucket_size, 64);
  EXPECT_EQ(parsed.config.zero.prefetch_bucket_size, 7);
  EXPECT_EQ(parsed.config.zero.param_persistence_threshold, 100'000);
  EXPECT_THROW(resolve_auto(parsed, {.hidden_size = -1}), ConfigError);
  EXPECT_THROW(resolve_auto(parsed, {.hidden_size = int64_t{1} << 40}), ConfigError);
}

std::string resolving(const char* text, const RunFacts& facts) {
  ParsedConfig parsed = parse_config(text, "test.json");
  return error_of<ConfigError>([&] { resolve_auto(parsed, facts); });
}

TEST(ResolveAuto, NamesEveryKeyThatCannotBeResolved) {
  const std::string message = resolving(kAuto, {.hidden_size = 8});
  EXPECT_THAT(message, HasAll("test.json: 2 problems",
                              "/scheduler/params/total_num_steps (3:72): got \"auto\"",
                              "/scheduler/params/warmup_num_steps (4:75): got \"auto\""));
  EXPECT_THAT(
      resolving(kAuto, {.total_steps = 10, .warmup_steps = 20}),
      HasSubstr("/scheduler/params/warmup_num_steps (4:75): got 20 steps of warm-up, expected at "
                "most total_num_steps, 10"));
  EXPECT_THAT(resolving(kAuto, {.total_steps = 10, .warmup_steps = 0}), IsEmpty());
  // The schedule does not need them.
  EXPECT_EQ(resolving(R"({"scheduler": {"params": {"total_num_steps": "auto"}}})", {}), "");
}

TEST(ResolveAuto, TheStepsOfTheTrainProgramCountUnlessTheCommandLineHasThem) {
  for (const auto& [facts, expected] : {std::pair(RunFacts{}, 300), {{.total_steps = 20}, 20}}) {
    ParsedConfig parsed = parse_config(R"({"scheduler": {"type": "cosine",
        "params": {"total_num_steps": "auto"}}, "zerorun": {"train": {"steps": 300}}})");
    resolve_auto(parsed, facts);
    EXPECT_EQ(parsed.config.scheduler.total_num_steps, expected);
  }
}

TEST(ResolveAuto, CheckAndShowSayWhatIsLeftToTheProgram) {
  const Scratch scratch;
  EXPECT_THAT(check_report(scratch.write("config.json", kAuto)),
              HasSubstr("the program has to give it: /scheduler/params/warmup_num_steps, "
                        "/scheduler/params/total_num_steps\n"));
  const std::string shown =
      show_config(parse_config(kAuto), {.world_size = 1, .hidden_size = 1000, .total_steps = 5000});
  EXPECT_THAT(shown, HasAll("\"reduce_bucket_size\": 1000000,  // auto\n",
                            "\"warmup_max_lr\": 0.0003,  // auto\n",
                            "\"warmup_num_steps\": \"auto\",  // the program has to give it\n",
                            "\"train_batch_size\": 8,  // auto\n"));
  EXPECT_EQ(problems_of(shown), "");
}

TEST(TypeDefaults, FollowTheOptimizer) {
  const auto optimizer_of = [](const std::string& text) {
    return parse_config(R"({"optimizer": {"type": )" + text + "}}").config.optimizer;
  };
  const OptimizerConfig adagrad = optimizer_of(R"("adagrad")");
  EXPECT_EQ(std::pair(adagrad.lr, adagrad.eps), std::pair(1e-2F, 1e-10F));
  const OptimizerConfig muon = optimizer_of(R"("Muon")");
  EXPECT_EQ(std::tuple(muon.lr, muon.muon_lr, muon.adam_lr), std::tuple(0.02F, 0.02F, 3e-4F));
  EXPECT_EQ(std::tuple(muon.beta2, muon.eps), std::tuple(0.95, 1e-10F));
  EXPECT_EQ(std::pair(muon.momentum, muon.nesterov), std::pair(0.95, true));
  const OptimizerConfig one_lr = optimizer_of(R"("Muon", "params": {"lr": 0.5, "adam_lr": 0.25})");
  EXPECT_EQ(std::tuple(one_lr.muon_lr, one_lr.lr, one_lr.adam_lr), std::tuple(0.5F, 0.5F, 0.25F));
  EXPECT_EQ(optimizer_of(R"("Muon", "params": {"lr": 0.5})").adam_lr, 0.5F);
  EXPECT_EQ(optimizer_of(R"("SGD")").momentum, 0.0);
  const auto parsed = parse_config(R"({"scheduler": {"type": "WarmupDecayLR",
      "params": {"total_num_steps": 2000}}})");
  EXPECT_THAT(parsed.config.scheduler.warmup_max_lr, ElementsAre(1e-3));
  EXPECT_EQ(find_value(parsed, "/scheduler/params/cycle_min_lr"), nullptr);
}

TEST(MasterAndStates, ConcernTheirBlocksDtypeOnly) {
  for (const auto& [text, master_is_param, states] :
       {std::tuple(R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": true,
                                "bf16_optimizer_states": true}})",
                   true, DType::bf16),
        {R"({"fp16": {"enabled": true, "fp16_master_weights_and_grads": true}})", true,
         DType::fp32},
        {R"({"fp16": {"enabled": true}, "bf16": {"bf16_master_weights_and_grads": true,
                                                 "bf16_optimizer_states": true}})",
         false, DType::fp32}}) {
    const PrecisionConfig precision = parse_config(text).config.precision;
    EXPECT_EQ(precision.master_is_param, master_is_param) << text;
    EXPECT_EQ(precision.state_dtype, states) << text;
  }
}

TEST(Schedules, ProblemsNameTheKey) {
  for (const auto& [text, message] :
       {std::pair(R"({"scheduler": {"type": "OneCycle",
                      "params": {"cycle_max_lr": 1}}})",
                  "/scheduler/params/cycle_min_lr (1:24): missing; OneCycle needs it"),
        {R"({"scheduler": {"type": "WarmupDecayLR", "params": {
             "total_num_steps": 100, "warmup_num_steps": 200}}})",
         "/scheduler/params/warmup_num_steps (2:58): got 200 steps of warm-up"},
        {R"({"scheduler": {"params": {"warmup_num_steps": 7}}})",
         "(1:27): is set, but /scheduler/type is missing"},
        {R"({"scheduler": {"type": "WarmpLR", "params": {"cycle_min_lr": 7}}})",
         "did you mean \"WarmupLR\""},
        {R"({"scheduler": {"type": "LRRangeTest", "params": {"lr_range_test_min_lr": []}}})",
         "got [], expected a number of at least 0 or an array of such numbers"},
        {R"({"optimizer": {"type": "SGD", "params": {"nesterov": true}}})",
         "/optimizer/params/nesterov (1:54): true needs momentum above 0"}}) {
    expect_problem(text, std::string("1 problem\n"));
    expect_problem(text, message);
  }
}

TEST(Schedules, WarnWhereNoMomentumCanCycle) {
  const auto warnings_of = [](const char* optimizer, const char* momentum) {
    return parse_config(fmt::format(R"({{"optimizer": {{"type": "{}"}}, "scheduler": {{"type":
        "OneCycle", "params": {{"cycle_min_lr": 0.1, "cycle_max_lr": 0.2,
        "cycle_momentum": {}}}}}}})",
                                    optimizer, momentum))
        .warnings;
  };
  EXPECT_THAT(warnings_of("SGD", "true"), ElementsAre(HasSubstr("SGD, which has no betas")));
  EXPECT_THAT(warnings_of("SGD", "false"), IsEmpty());
  EXPECT_THAT(warnings_of("Lamb", "true"), IsEmpty());
}

TEST(Base64, DecodesWhatOthersEncode) {  // RFC 4648, section 10
  for (const auto& [text, bytes] : {std::pair("", ""),
                                    {"Zg==", "f"},
                                    {"Zg", "f"},
                                    {"Zm8=", "fo"},
                                    {"Zm9vYg==", "foob"},
                                    {"Zm9vYmE", "fooba"},
                                    {"Zm9vYmFy", "foobar"},
                                    {"Pj8-_w==", ">?>\xff"}}) {
    EXPECT_EQ(decode_base64url(text), bytes) << text;
  }
  for (const char* text : {"Z", "Zg=", "Zg===", "Zm9v=", "Zm+v", "Zm9v\n", "Z=9v", "===="}) {
    EXPECT_EQ(decode_base64url(text), std::nullopt) << text;
  }
}

TEST(LoadConfig, ReadsAFileOrBase64AndNamesWhatItCannotRead) {
  const Scratch folder;
  const std::string path = folder.write("ds.json", R"({"zero_optimization": {"stage": 2}})");
  const std::string encoded = "eyJ6ZXJvX29wdGltaXphdGlvbiI6IHsic3RhZ2UiOiAyfX0=";  // the same
  for (const auto& [given, source] : {std::pair(path, path), {encoded, "<base64>"}}) {
    EXPECT_EQ(load_config(given).config.zero.stage, 2);
    EXPECT_EQ(load_config(given).config.source, source);
  }
  folder.write("ds.json", "{\n");
  EXPECT_ERROR(load_config(path), path + ": 1 problem");
  EXPECT_THROW(load_config(folder.path()), ConfigError);
  for (const std::string& text : {std::string("no_such_file"), std::string(100'000, 'A')}) {
    const std::string error = error_of<ConfigError>([&] { load_config(text); });
    EXPECT_THAT(error, HasSubstr("expected a JSON file, or the base64 text of one"));
    EXPECT_LT(error.size(), 500U);
  }
}

}  // namespace
}  // namespace zerorun
