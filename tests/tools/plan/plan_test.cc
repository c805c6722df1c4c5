#include "tools/plan/plan.h"

#include "tests/common.h"
#include "tools/commands.h"
#include "tools/terminal/tool.h"
#include "train/model/activations.h"
#include "train/model/gpt_config.h"
#include "train/model/parameters.h"

namespace zerorun {
namespace {

int64_t count(const std::vector<ParameterSpec>& specs) {
  return std::accumulate(specs.begin(), specs.end(), int64_t{0},
                         [](int64_t sum, const ParameterSpec& spec) { return sum + spec.numel(); });
}

TEST(PlanModel, TheBundledModelsAreThoseOfTheTrainProgram) {
  for (const std::string name : {"nano", "mini", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"}) {
    train::GptConfig config = train::gpt_config(name);
    config.vocabulary = name.starts_with("gpt2") ? 50257 : 256;
    const PlanModel model = plan_model(name);
    const std::vector<ParameterSpec> expected = train::parameter_specs(config);
    ASSERT_EQ(model.specs.size(), expected.size()) << name;
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(model.specs[i].shape, expected[i].shape) << name << " " << expected[i].name;
      EXPECT_EQ(model.specs[i].group, expected[i].group);
      EXPECT_EQ(model.specs[i].use_muon, expected[i].use_muon);
      EXPECT_EQ(model.specs[i].module, expected[i].module);
    }
    EXPECT_EQ(model.hidden_size, config.width);
    EXPECT_EQ(model.recomputed_nbytes_per_token,
              train::activation_nbytes_per_token(config, true, DType::fp32));
    EXPECT_EQ(model.logits_row_nbytes, 4.0 * static_cast<double>(config.vocabulary));
  }
}

// Published sizes; heads that are not width / heads wide, norms of heads, biases, tied by default.
TEST(PlanModel, CountsModelsOfHuggingFace) {
  const Scratch folder;
  for (const auto& [json, numel] : std::vector<std::pair<const char*, int64_t>>{
           {R"("gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
               "vocab_size": 50257)",
            124'439'808},
           {R"("llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
               "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192,
               "vocab_size": 128256, "tie_word_embeddings": true)",
            1'235'814'400},
           {R"("qwen3", "hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 64,
               "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 25600,
               "vocab_size": 151936, "tie_word_embeddings": false)",
            32'762'123'264},
           {R"("gemma", "hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
               "num_key_value_heads": 16, "head_dim": 256, "intermediate_size": 24576,
               "vocab_size": 256000)",
            8'537'680'896},
           {R"("qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
               "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064,
               "tie_word_embeddings": false)",
            7'615'616'512},
           {R"("mistral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
               "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000)",
            7'241'732'096},
           {R"("phi3", "hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 32,
               "num_key_value_heads": 32, "intermediate_size": 8192, "vocab_size": 32064)",
            3'821'079'552}}) {
    const std::string file =
        folder.write("config.json", fmt::format(R"({{"model_type": {}}})", json));
    EXPECT_EQ(count(plan_model(file).specs), numel) << json;
  }
}

TEST(PlanModel, RefusesWhatTheFormulaDoesNotCover) {
  const Scratch folder;
  const std::string llama = R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
      "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100)";
  EXPECT_NO_THROW(plan_model(folder.write("config.json", llama + "}")));
  for (const auto& [json, message] : std::vector<std::pair<std::string, const char*>>{
           {R"({"model_type": "mixtral", "num_local_experts": 8})",
            "/num_local_experts is 8: expected a model without experts; give --model a number"},
           {R"({"model_type": "deepseek"})",
            "/model_type is \"deepseek\": expected one of gpt2, llama"},
           {llama + R"(, "head_dim": "64"})", "/head_dim is \"64\": expected an integer from 1"},
           {llama + R"(, "tie_word_embeddings": "yes"})", "/tie_word_embeddings is \"yes\""},
           {R"({"model_type": 3})", "/model_type is 3: expected a string"},
           {R"({"hidden_size": 10})", "/model_type is missing: expected one of gpt2"},
           {R"({"model_type": "gpt2", "n_embd": 10, "n_layer": 1, "n_head": 3})",
            "/n_head is 3: expected a divisor of the width, 10"},
           {R"({"model_type": "gpt2", "n_embd": 16777216, "n_layer": 4096, "n_head": 1})",
            "parameters; expected at most 1e+15"},
           {"[1]", "expected a JSON object"}}) {
    EXPECT_ERROR_OF(ConfigError, plan_model(folder.write("config.json", json)), "config.json",
                    message);
  }
}

TEST(PlanModel, TakesANumberOfParameters) {
  for (const auto& [text, expected] :
       {std::pair("350M", 350e6), {"1.3B", 1.3e9}, {"175B", 175e9}, {"1000T", 1e15}}) {
    EXPECT_NEAR(static_cast<double>(count(plan_model(text).specs)) / expected, 1.0, 0.01) << text;
  }
  for (const char* wrong : {"inf", "nan", "0", "-5", "1e300", "1e16", "0.1", "1001T"}) {
    EXPECT_THROW(plan_model(wrong), ConfigError) << wrong;
  }
  EXPECT_ERROR_OF(ConfigError, plan_model("gpt3"),
                  "--model 'gpt3' (did you mean \"gpt2\"?): expected nano, mini");
  EXPECT_ERROR_OF(ConfigError, plan_model(std::string(300, 'a')), "expected nano, mini");
}

TEST(Plan, BytesAreReadWithTheirUnit) {
  for (const auto& [text, expected] : {std::pair("80GB", int64_t{80'000'000'000}),
                                       {"24GiB", int64_t{24} << 30},
                                       {"24G", int64_t{24} << 30},
                                       {"80gb", 80'000'000'000},
                                       {"24gib", int64_t{24} << 30},
                                       {"1.5TB", 1'500'000'000'000}}) {
    EXPECT_EQ(parse_bytes(text, "x"), expected) << text;
  }
  for (const char* wrong : {"", "GB", "80 GB", "80XB", "-1GB", "nanGB", "80", "80B", "1e30GB"}) {
    EXPECT_THROW(parse_bytes(wrong, "--disk"), ConfigError) << wrong;
  }
}

TEST(Plan, ReportsTheFilesSettingAndATableOfAll) {
  const Scratch folder;
  folder.write("ds.json", R"({"bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": "auto",
      "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto",
                            "offload_optimizer": {"device": "cpu"}}})");
  PlanOptions options{.config = folder.path() / "ds.json",
                      .model = "gpt2",
                      .world_size = 4,
                      .device_memory = "1GiB",
                      .micro_batch = 2,
                      .seq_len = 512};
  const std::string report = plan_report(options);
  EXPECT_THAT(report, HasAll("gpt2: 124.4 M parameters; 4 ranks, 4 per host",
                             "stage 3, optimizer cpu, bf16", ContainsRegex("moments +-\n"),
                             ContainsRegex("pinned +[0-9.]+ MiB"),
                             ContainsRegex("stage 0 +[0-9.]+ GiB +- +-  no"), "disk/host  fits\n",
                             "stage 3, optimizer nvme, parameters cpu"));
  options.seq_len = 0;
  EXPECT_THAT(plan_report(options), HasSubstr("disk/host  states fit\n"));
}

TEST(Plan, FitWritesTheFastestConfigurationThatFits) {
  const Scratch folder;
  folder.write("ds.json", R"({"bf16": {"enabled": true}, "gradient_clipping": 0.5,
      "zero_optimization": {"stage": 1, "cpu_offload": true}})");
  PlanOptions options{
      .config = folder.path() / "ds.json", .model = "1.3B", .fit = folder.path() / "fit.json"};
  const auto fit = [&](const std::string& device, const std::string& host) {
    options.device_memory = device;
    options.host_memory = host;
    plan_report(options);
    return load_config(options.fit).config;
  };
  const Config large = fit("80GB", "1GB");
  EXPECT_EQ(large.zero.stage, 1);
  EXPECT_EQ(large.offload.optimizer.device, OffloadDevice::none);
  EXPECT_EQ(large.gradient_clipping, 0.5);
  const Config medium = fit("16GB", "64GB");
  EXPECT_EQ(medium.offload.optimizer.device, OffloadDevice::cpu);
  EXPECT_LT(medium.offload.optimizer.ratio, 1.0);
  options.nvme_path = "/disk";
  const Config small = fit("8GB", "8GB");
  EXPECT_EQ(small.offload.optimizer.device, OffloadDevice::nvme);
  EXPECT_EQ(small.offload.optimizer.nvme_path, "/disk");
  const Config smallest = fit("2GB", "4GB");
  EXPECT_EQ(smallest.offload.param.device, OffloadDevice::nvme);
  EXPECT_EQ(smallest.offload.param.nvme_path, "/disk");
  EXPECT_EQ(smallest.offload.param.max_in_cpu, 0);
  EXPECT_THROW(fit("1GB", "1GB"), ConfigError);
}

// Fitting a model into what one row of the table needs succeeds, and chooses nothing larger.
TEST(Plan, FitFindsWhateverTheTableSaysFits) {
  const Scratch folder;
  PlanOptions options{.model = "350M",
                      .world_size = 4,
                      .disk = "100GB",
                      .nvme_path = test_paths::build(),
                      .fit = folder.path() / "fit.json"};
  int rows = 0;
  for (const char* device : {"100MB", "300MB", "700MB", "1GB", "1500MB", "2GB", "6GB", "10GB"}) {
    for (const char* host : {"100MB", "1GB", "3GB", "8GB"}) {
      options.device_memory = device;
      options.host_memory = host;
      PlanOptions table = options;
      table.fit.clear();
      const std::string text = plan_report(table);
      if (text.find("  yes\n") == std::string::npos) {
        EXPECT_THROW(plan_report(options), ConfigError) << device << " " << host;
        continue;
      }
      ++rows;
      EXPECT_THAT(plan_report(options), StartsWith(options.fit)) << text;
    }
  }
  EXPECT_GT(rows, 8);
}

TEST(Plan, FitNamesWhatIsClosestOrWhatIsMissing) {
  const Scratch folder;
  const auto error_with = [&](const char* device, const char* host) {
    return error_of<ConfigError>([&] {
      plan_report({.model = "350M",
                   .device_memory = device,
                   .host_memory = host,
                   .fit = folder.path("fit.json")});
    });
  };
  EXPECT_THAT(error_with("", ""), HasSubstr("--fit needs a limit"));
  EXPECT_THAT(error_with("1MB", ""),
              ContainsRegex("nothing fits; the closest, stage 3, .*parameters cpu, .* of each "
                            "host's memory\\. Use more ranks"));
  EXPECT_FALSE(std::filesystem::exists(folder.path("fit.json")));
  EXPECT_THAT(error_with("2GB", "3GB"), HasSubstr("only settings with NVMe fit, such as stage "));
}

TEST(Plan, FitWritesWhatItsDecisionRestsOnAndKeepsTheUsersSettings) {
  const Scratch folder;
  PlanOptions options{.config = folder.write("ds.json", R"({ // a comment
      "bf16": {"enabled": true}, "train_batch_size": 32, "gradient_accumulation_steps": 4,
      "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme",
          "nvme_path": "/disk", "buffer_count": 7}},
      "zerorun": {"train": {"steps": 5}}})"),
                      .model = "gpt2",
                      .world_size = 2,
                      .device_memory = "1GB",
                      .host_memory = "4GB",
                      .micro_batch = 1,
                      .seq_len = 128,
                      .recompute = true,
                      .fit = folder.path("fit.json")};
  plan_report(options);
  const Config config = load_config(options.fit).config;
  EXPECT_NE(config.offload.optimizer.device, OffloadDevice::none);
  EXPECT_EQ(config.offload.optimizer.buffer_count, 7);
  EXPECT_EQ(config.batch.train_batch_size, 32);
  EXPECT_EQ(config.batch.micro_batch_size, 1);
  EXPECT_THAT(config.train_options, HasAll("\"steps\":5", "\"seq_len\":128", "\"recompute\":true"));
  // The file alone plans to the same bytes.
  options.config = std::exchange(options.fit, "");
  options.device_memory = options.host_memory = "";
  const std::string alone =
      plan_report({.config = options.config, .model = "gpt2", .world_size = 2});
  EXPECT_EQ(alone, plan_report(options));
  EXPECT_THAT(alone, ContainsRegex("activations +[0-9.]+ [MG]iB"));
  folder.write("ds.json", R"({"train_batch_size": 8, "zerorun": {"train": null}})");
  EXPECT_NO_THROW(plan_report({.config = folder.path("ds.json"),
                               .model = "gpt2",
                               .device_memory = "8GB",
                               .micro_batch = 1,
                               .fit = folder.path("fit.json")}));
}

TEST(Plan, CountsTheMicroBatchOfTheTrainProgramWhereNoneIsGivenAndNoMoreRanksThanThereAre) {
  const auto report = [](int64_t micro_batch, int ranks_per_host) {
    return plan_report({.model = "gpt2",
                        .world_size = 2,
                        .ranks_per_host = ranks_per_host,
                        .micro_batch = micro_batch,
                        .seq_len = 256});
  };
  const std::string unset = report(0, 2);
  EXPECT_THAT(unset, HasSubstr("2 ranks, 2 per host"));
  EXPECT_EQ(report(8, 2), unset);
  EXPECT_NE(report(1, 2), unset);
  EXPECT_EQ(report(0, 8), unset);
}

TEST(Plan, RefusesSizesBeyondReason) {
  PlanOptions options{
      .model = "gpt2", .micro_batch = int64_t{1} << 40, .seq_len = int64_t{1} << 40};
  EXPECT_THROW(plan_report(options), ConfigError);
  PlanOptions ranks{.model = "900T", .world_size = 1'000'000, .cpu = true};
  EXPECT_THROW(plan_report(ranks), ConfigError);
}

TEST(BenchNvme, PrintsATableTheBestSettingAndTheCostOfAStep) {
  std::string text;
  bench_nvme(test_paths::build(), uint64_t{16} << 20,
             [&](const std::string& line) { text += line + "\n"; });
  EXPECT_THAT(text,
              HasAll("read GB/s", "1024 KiB       8", "best: \"aio\": {\"block_size\": ",
                     ContainsRegex("a step of Adam takes about [0-9.]+ s"), Not(HasSubstr("inf"))));
  const auto error_with = [](const std::string& folder, uint64_t nbytes) {
    return error_of<ConfigError>([&] { bench_nvme(folder, nbytes, [](const std::string&) {}); });
  };
  EXPECT_THAT(error_with("/dev/shm", 1 << 20), StartsWith("bench nvme: /dev/shm is a"));
  EXPECT_THAT(error_with(test_paths::build(), uint64_t{1} << 60),
              HasAll("for the file to measure with: ", "measure with less (--gib)",
                     Not(HasSubstr("offload"))));
}

}  // namespace
}  // namespace zerorun
