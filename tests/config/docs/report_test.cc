#include "config/docs/report.h"

#include "tests/config/support.h"

namespace zerorun {
namespace {

// Users of Hugging Face and accelerate write such files.
constexpr const char* kTrainerConfig = R"({
  "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000,
           "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1},
  "bf16": {"enabled": "auto"},
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
                                            "weight_decay": "auto"}},
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": {"device": "none", "pin_memory": true, "nvme_path": null},
    "offload_param": {"device": "none", "pin_memory": true, "nvme_path": null},
    "overlap_comm": true, "contiguous_gradients": true, "sub_group_size": 1e9,
    "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": true
  },
  "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
  "steps_per_print": Infinity, "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": 2, "wall_clock_breakdown": false,
  "zero_allow_untested_optimizer": true
})";

// Of a file with this text, whose path is FILE in the report.
std::string check(const std::string& text) {
  const Scratch scratch;
  const std::string path = scratch.write("config.json", text);
  std::string report = check_report(path);
  if (const size_t at = report.find(path); at != report.npos)
    report.replace(at, path.size(), "FILE");
  return report;
}

TEST(Report, GroupsHaveToDivideTheRanksThatBatchSizesSuit) {
  const auto of_8_ranks = [](const std::string& zero, const std::string& more = "") {
    return check(R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1, "zero_optimization": {"stage": )" +
                 zero + "}" + more + "}");
  };
  EXPECT_ERROR(of_8_ranks("3", R"(, "zerorun": {"shard_group_size": 3})"),
               "shard_group_size (mics_shard_size): got 3, expected a number that divides "
               "8, the number of ranks");
  EXPECT_ERROR(of_8_ranks(R"(2, "mics_shard_size": 16)"), "got 16");
  EXPECT_THAT(
      of_8_ranks(R"(3, "zero_hpz_partition_size": 16)"),
      HasAll("zero_hpz_partition_size: 16 does not divide 8 ranks", "an error on several hosts"));
  for (const std::string& right :
       {of_8_ranks(R"(3, "zero_hpz_partition_size": 4)"),
        of_8_ranks(R"(3, "zero_hpz_partition_size": "auto")"),
        of_8_ranks(R"(1, "mics_shard_size": 8)"),
        of_8_ranks("3", R"(, "zerorun": {"shard_group_size": "auto"})"),
        of_8_ranks(R"(3, "mics_shard_size": 16)", R"(, "sequence_parallel_size": 2)")}) {
    EXPECT_THAT(right, HasAll("suit 8 ranks", Not(HasSubstr("an error on several hosts"))));
  }
}

TEST(Report, ShowIsAConfigurationThatMeansTheSame) {
  for (const char* text :
       {kTrainerConfig, "{}",
        R"({"bfloat16": {"enabled": true}, "train_batch_size": 8, "optimizer": {"params":
            {"lr": 3e-4}}, "zerorun": {"train": {"data": ["a\"b"], "steps": 20}}})"}) {
    const ParsedConfig parsed = parse_config(text);
    EXPECT_THAT(parsed.warnings, IsEmpty());
    const std::string shown = show_config(parsed, {.world_size = 2});
    const ParsedConfig again = parse_config(shown);
    EXPECT_EQ(again.config.train_options, parsed.config.train_options);
    EXPECT_EQ(again.config.optimizer.lr, parsed.config.optimizer.lr);
    for (const ConfigValue& value : parsed.values) {
      if (value.value == "null") continue;
      const ConfigValue* copy = find_value(again, value.pointer);
      ASSERT_NE(copy, nullptr) << value.pointer;
      EXPECT_EQ(copy->value, value.value) << value.pointer;
    }
  }
}

TEST(Report, ShowMarksWhatIsInferredAndWhatDiffers) {
  const std::string shown =
      show_config(parse_config(R"({"train_batch_size": 8, "zero_optimization": {"stage": 3},
                                   "gradient_clipping": 1.0})",
                               "x.json"),
                  {.world_size = 2});
  EXPECT_THAT(shown,
              HasAll("// x.json, 2 ranks\n{\n", "\"train_batch_size\": 8,  // given\n",
                     "\"train_micro_batch_size_per_gpu\": 4,  // inferred\n",
                     "    \"stage\": 3,  // default 0\n", "\"overlap_comm\": true,  // inferred\n",
                     "  \"gradient_clipping\": 1,\n"));
  EXPECT_THROW(show_config(parse_config(R"({"train_batch_size": 9})"), {.world_size = 2}),
               ConfigError);
}

TEST(Report, CheckSaysWhatAFileAsksForAndWhatHasNoEffect) {
  const std::string report = check(R"({
    "train_batch_size": 12, "train_micro_batch_size_per_gpu": 2,
    "zero_optimization": {"stage": 2, "round_robin_gradients": true, "reduce_scatter": false,
                          "stage3_gather_fp16_weights_on_model_save": true,
                          "offload_optimizer": {"ratio": 0.5}}, "aio": {"queue_depth": 16}})");
  EXPECT_THAT(
      report,
      HasAll(
          "FILE: ok\n", "/zero_optimization/stage", "batch sizes: suit 1, 2, 3, 6 ranks",
          "no effect: /zero_optimization/round_robin_gradients: every",
          "no effect: /zero_optimization/reduce_scatter: always on",
          "warning: /zero_optimization/stage3_gather_fp16_weights",
          "no effect: /zero_optimization/offload_optimizer/ratio: "
          "/zero_optimization/offload_optimizer/device is \"none\"",
          "no effect: /aio/queue_depth: /zero_optimization/offload_optimizer/device is \"none\""));
  for (const char* on :
       {R"("cpu_offload": true)", R"("offload_optimizer": {"device": "cpu", "ratio": 0.5})",
        R"("offload_param": {"device": "nvme", "nvme_path": "/disk", "max_in_cpu": 0})"}) {
    EXPECT_THAT(check(fmt::format(
                    R"({{"train_batch_size": 4, "zero_optimization": {{"stage": 3, {}}},
                         "aio": {{"queue_depth": 16}}}})",
                    on)),
                Not(HasSubstr("no effect")))
        << on;
  }
}

// As zerorun.initialize, which cannot make an engine of such a file.
TEST(Report, CheckRejectsBatchSizesThatNoNumberOfRanksSuits) {
  EXPECT_ERROR_OF(ConfigError, check(R"({"gradient_accumulation_steps": 4})"),
                  "neither train_batch_size nor train_micro_batch_size");
  const auto sizes = [](const std::string& keys) {
    return check(R"({"train_batch_size": )" + keys + "}");
  };
  EXPECT_THROW(sizes(R"(10, "train_micro_batch_size_per_gpu": 3)"), ConfigError);
  EXPECT_THAT(sizes("\"auto\""), HasSubstr("batch sizes: \"auto\", the program has to give them"));
  EXPECT_THAT(sizes(R"(5000, "train_micro_batch_size_per_gpu": 1,
                       "gradient_accumulation_steps": 1)"),
              HasSubstr("suit 5000 ranks"));
  EXPECT_THAT(sizes("9223372036854775783"), HasSubstr("suit 1, ... ranks"));
  EXPECT_THAT(check(R"({"zerorun": {"train": {"steps": 3}}})"), HasSubstr("ok"));
  EXPECT_THROW(check_report("/no/such/file.json"), ConfigError);
}

// The properties of the block that `pointer` stands in.
const nlohmann::json& properties_of(const nlohmann::json& schema, std::string_view pointer) {
  const nlohmann::json* object = &schema;
  for (size_t begin = 1, end = 0; (end = pointer.find('/', begin)) != std::string_view::npos;
       begin = end + 1) {
    object = &object->at("properties").at(std::string(pointer.substr(begin, end - begin)));
  }
  EXPECT_EQ(object->at("additionalProperties"), false) << pointer;
  return object->at("properties");
}

TEST(Report, SchemaDescribesEveryKey) {
  const auto schema = nlohmann::json::parse(json_schema());
  EXPECT_EQ(schema.at("$schema"), "https://json-schema.org/draft/2020-12/schema");
  for (const KeySpec* spec : key_table().keys()) {
    const nlohmann::json& properties = properties_of(schema, spec->pointer);
    ASSERT_TRUE(properties.contains(spec->name())) << spec->pointer;
    EXPECT_TRUE(spec->alias.empty() || properties.contains(spec->alias)) << spec->alias;
    const nlohmann::json& key = properties.at(std::string(spec->name()));
    EXPECT_THAT(key.at("description").get<std::string>(), HasSubstr(std::string(spec->doc)));
    if (spec->is_block() || spec->fallback == "null") continue;
    EXPECT_EQ(key.at("default"), nlohmann::json::parse(spec->fallback)) << spec->pointer;
  }
  const nlohmann::json& stage = properties_of(schema, "/zero_optimization/stage").at("stage");
  const nlohmann::json& integer = stage.at("anyOf").at(0);
  EXPECT_EQ(integer.at("minimum"), 0);
  EXPECT_EQ(integer.at("maximum"), 3);
  EXPECT_EQ(integer.at("type"), "integer");
  EXPECT_EQ(
      properties_of(schema, "/hybrid_engine/enabled").at("enabled").at("anyOf").at(0).at("const"),
      false);
}

TEST(Report, DocumentationIsUpToDate) {
  const std::filesystem::path root = std::filesystem::path(test_paths::tests()).parent_path();
  std::ifstream file(root / "docs" / "config.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(text.str() == config_markdown())
      << "run: zerorun config docs > docs/config.md, and commit the change";
  for (const KeySpec* spec : key_table().keys()) {
    if (!spec->is_block()) {
      EXPECT_THAT(text.str(), HasSubstr(fmt::format("| `{}` |", spec->name())));
    }
  }
}

}  // namespace
}  // namespace zerorun
