#include "tools/plan/plan.h"

#include "tests/common.h"
#include "tests/error_of.h"
#include "tests/paths.h"
#include "tests/scratch.h"
#include "tools/commands.h"
#include "tools/terminal/tool.h"
#include "train/model/activations.h"
#include "train/model/gpt_config.h"
#include "train/model/parameters.h"
#include "zerorun/config.h"
#include "zerorun/error.h"

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
           {R"("llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
               "intermediate_size": 11008, "vocab_size": 32000, "tie_word_embeddings": false)",
            6'738'415'616},
           {R"("llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
               "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
               "tie_word_embeddings": false)",
            8'030'261'248},
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
  const auto expect = [&](const std::string& json, const std::string& message) {
    EXPECT_THAT([&] { plan_model(folder.write("config.json", json)); },
                ThrowsMessage<ConfigError>(AllOf(HasSubstr("config.json"), HasSubstr(message))))
        << json;
  };
  const std::string llama = R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
      "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100)";
  EXPECT_NO_THROW(plan_model(folder.write("config.json", llama + "}")));
  expect(R"({"model_type": "mixtral", "num_local_experts": 8})",
         "/num_local_experts is 8: expected a model without experts; give --model a number");
  expect(R"({"model_type": "deepseek"})",
         "/model_type is \"deepseek\": expected one of gpt2, llama");
  expect(llama + R"(, "head_dim": "64"})", "/head_dim is \"64\": expected an integer from 1");
  expect(llama + R"(, "tie_word_embeddings": "yes"})", "/tie_word_embeddings is \"yes\"");
  expect(R"({"model_type": 3})", "/model_type is 3: expected a string");
  expect(R"({"model_type": "gpt2", "n_embd": 10, "n_layer": 1, "n_head": 3})",
         "/n_head is 3: expected a divisor of the width, 10");
  expect(R"({"model_type": "gpt2", "n_embd": 16777216, "n_layer": 4096, "n_head": 1})",
         "parameters; expected at most 1e+15");
  expect("[1]", "expected a JSON object");
}

TEST(PlanModel, NumbersOfParametersHaveBounds) {
  for (const char* wrong : {"inf", "nan", "0", "-5", "1e300", "1e16", "0.1", "1001T"}) {
    EXPECT_THROW(plan_model(wrong), ConfigError) << wrong;
  }
  EXPECT_NEAR(static_cast<double>(count(plan_model("1000T").specs)), 1e15, 1e13);
}

TEST(PlanModel, TakesANumberOfParameters) {
  for (const auto& [text, expected] :
       {std::pair("350M", 350e6), {"1.3B", 1.3e9}, {"175B", 175e9}}) {
    EXPECT_NEAR(static_cast<double>(count(plan_model(text).specs)) / expected, 1.0, 0.01) << text;
  }
}

TEST(PlanModel, SaysWhatItCanBe) {
  const Scratch folder;
  folder.write("bad.json", R"({"hidden_size": 10})");
  EXPECT_THAT([] { plan_model("gpt3"); },
              ThrowsMessage<ConfigError>(
                  HasSubstr("--model 'gpt3' (did you mean \"gpt2\"?): expected nano, mini")));
  EXPECT_THAT(
      [&] { plan_model(folder.path() / "bad.json"); },
      ThrowsMessage<ConfigError>(HasSubstr("/model_type is missing: expected one of gpt2")));
}

TEST(Plan, BytesAreReadWithTheirUnit) {
  EXPECT_EQ(parse_bytes("80GB", "x"), 80'000'000'000);
  EXPECT_EQ(parse_bytes("24GiB", "x"), int64_t{24} << 30);
  EXPECT_EQ(parse_bytes("24G", "x"), int64_t{24} << 30);
  EXPECT_EQ(parse_bytes("80gb", "x"), 80'000'000'000);
  EXPECT_EQ(parse_bytes("24gib", "x"), int64_t{24} << 30);
  EXPECT_EQ(parse_bytes("1.5TB", "x"), 1'500'000'000'000);
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
  EXPECT_THAT(report, HasSubstr("gpt2: 124.4 M parameters; 4 ranks, 4 per host"));
  EXPECT_THAT(report, HasSubstr("stage 3, optimizer cpu, bf16"));
  EXPECT_THAT(report, ContainsRegex("moments +-\n"));
  EXPECT_THAT(report, ContainsRegex("pinned +[0-9.]+ MiB"));
  EXPECT_THAT(report, ContainsRegex("stage 0 +[0-9.]+ GiB +- +-  no"));
  EXPECT_THAT(report, HasSubstr("disk/host  fits\n"));
  options.seq_len = 0;
  EXPECT_THAT(plan_report(options), HasSubstr("disk/host  states fit\n"));
  EXPECT_THAT(report, HasSubstr("stage 3, optimizer nvme, parameters cpu"));
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
  PlanOptions options{.model = "350M", .fit = folder.path() / "fit.json"};
  const auto error_of = [&] {
    return testing::error_of<ConfigError>([&] { plan_report(options); });
  };
  EXPECT_THAT(error_of(), HasSubstr("--fit needs a limit"));
  options.device_memory = "1MB";
  EXPECT_THAT(error_of(),
              ContainsRegex("nothing fits; the closest, stage 3, .*parameters cpu, .* of each "
                            "host's memory\\. Use more ranks"));
  EXPECT_FALSE(std::filesystem::exists(options.fit));
  options.device_memory = "2GB";
  options.host_memory = "3GB";
  EXPECT_THAT(error_of(), HasSubstr("only settings with NVMe fit, such as stage "));
}

TEST(Plan, FitWritesWhatItsDecisionRestsOnAndKeepsTheUsersSettings) {
  const Scratch folder;
  PlanOptions options;
  options.config = folder.write("ds.json", R"({ // a comment
      "bf16": {"enabled": true}, "train_batch_size": 32, "gradient_accumulation_steps": 4,
      "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme",
          "nvme_path": "/disk", "buffer_count": 7}},
      "zerorun": {"train": {"steps": 5}}})");
  options.model = "gpt2";
  options.world_size = 2;
  options.device_memory = "1GB";
  options.host_memory = "4GB";
  options.micro_batch = 1;
  options.seq_len = 128;
  options.recompute = true;
  options.fit = folder.path() / "fit.json";
  plan_report(options);
  const Config config = load_config(options.fit).config;
  EXPECT_NE(config.offload.optimizer.device, OffloadDevice::none);
  EXPECT_EQ(config.offload.optimizer.buffer_count, 7);
  EXPECT_EQ(config.batch.train_batch_size, 32);
  EXPECT_EQ(config.batch.micro_batch_size, 1);
  EXPECT_THAT(config.train_options, HasSubstr("\"steps\":5"));
  EXPECT_THAT(config.train_options, HasSubstr("\"seq_len\":128"));
  EXPECT_THAT(config.train_options, HasSubstr("\"recompute\":true"));
  // The file alone plans to the same bytes.
  PlanOptions alone{
      .config = options.fit, .model = options.model, .world_size = options.world_size};
  options.fit.clear();
  options.config = alone.config;
  EXPECT_EQ(plan_report(alone), [&] {
    PlanOptions same = options;
    same.device_memory.clear();
    same.host_memory.clear();
    return plan_report(same);
  }());
  EXPECT_THAT(plan_report(alone), ContainsRegex("activations +[0-9.]+ [MG]iB"));
}

TEST(Plan, TakesTheConfigurationAsBase64) {
  const Scratch folder;
  PlanOptions options{
      .config = "eyJiZjE2IjogeyJlbmFibGVkIjogdHJ1ZX0sICJncmFkaWVudF9jbGlwcGluZyI6IDAuNX0",
      .model = "gpt2",
      .device_memory = "80GB",
      .fit = folder.path() / "fit.json"};
  EXPECT_THAT(plan_report(options), HasSubstr("<base64>: stage 0"));
  EXPECT_EQ(load_config(options.fit).config.gradient_clipping, 0.5);
}

TEST(Plan, CountsTheMicroBatchOfTheTrainProgramWhereNoneIsGiven) {
  PlanOptions options{.model = "gpt2", .seq_len = 256};
  const std::string unset = plan_report(options);
  options.micro_batch = 8;
  EXPECT_EQ(unset, plan_report(options));
  options.micro_batch = 1;
  EXPECT_NE(unset, plan_report(options));
}

TEST(Plan, AHostHasNoMoreRanksThanThereAre) {
  PlanOptions options;
  options.model = "gpt2";
  options.world_size = options.ranks_per_host = 2;
  const std::string two = plan_report(options);
  EXPECT_THAT(two, HasSubstr("2 ranks, 2 per host"));
  options.ranks_per_host = 8;
  EXPECT_EQ(plan_report(options), two);
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
  EXPECT_THAT(text, HasSubstr("read GB/s"));
  EXPECT_THAT(text, HasSubstr("1024 KiB       8"));
  EXPECT_THAT(text, HasSubstr("best: \"aio\": {\"block_size\": "));
  EXPECT_THAT(text, ContainsRegex("a step of Adam takes about [0-9.]+ s"));
  EXPECT_THAT(text, Not(HasSubstr("inf")));
  const auto error_of = [](const std::string& folder, uint64_t nbytes) {
    return testing::error_of<ConfigError>(
        [&] { bench_nvme(folder, nbytes, [](const std::string&) {}); });
  };
  EXPECT_THAT(error_of("/dev/shm", 1 << 20), StartsWith("bench nvme: /dev/shm is a"));
  const std::string large = error_of(test_paths::build(), uint64_t{1} << 60);
  EXPECT_THAT(large, HasSubstr("for the file to measure with: "));
  EXPECT_THAT(large, HasSubstr("measure with less (--gib)"));
  EXPECT_THAT(large, Not(HasSubstr("offload")));
}

}  // namespace
}  // namespace zerorun
