#include "train/model/model.h"

#include "tests/train/model/kernels_conformance.h"
#include "tests/train/model/model_conformance.h"
#include "train/model/philox.h"
#include "zero/partition/model_spec.h"

namespace zerorun::train::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Kernels, ModelConformance,
                         ::testing::ValuesIn(with_every_dtype(cpu_kernels())), name_of_case);

// Records what the model does with its parameters.
class RecordingParameters final : public ParameterAccess {
 public:
  explicit RecordingParameters(LocalParameters& inner) : inner_(inner) {}
  ParameterId parameter_id(std::string_view name) const override {
    return inner_.parameter_id(name);
  }
  ModuleId module_id(std::string_view name) const override { return inner_.module_id(name); }
  void gather(ModuleId module) override {
    ++gathers;
    gathered_.insert(module);
  }
  void release(ModuleId module) override { gathered_.erase(gathered_.find(module)); }
  TensorView parameter(ParameterId id) const override {
    const std::string& module = inner_.specs()[static_cast<size_t>(id)].module;
    EXPECT_EQ(gathered_.count(inner_.module_id(module)), 1U) << module << " is not gathered";
    most_gathered = std::max(most_gathered, gathered_.size());
    return inner_.parameter(id);
  }
  GradientView gradient(ParameterId id) override { return inner_.gradient(id); }
  void grad_ready(ParameterId id) override {
    inner_.grad_ready(id);
    ready.push_back(id);
  }
  bool all_released() const { return gathered_.empty(); }

  int gathers = 0;
  std::vector<ParameterId> ready;
  mutable size_t most_gathered = 0;

 private:
  LocalParameters& inner_;
  std::multiset<ModuleId> gathered_;
};

TEST(ModelTest, GathersModulesAroundTheirUseAndCompletesEveryGradientOnce) {
  GoldenModel golden(cpu_kernels());
  LocalParameters& local = golden.parameters();
  CpuKernels kernels;
  RecordingParameters parameters(local);
  Model model(Golden::config(), {Golden::kBatch, Golden::kSeqLen}, parameters, golden.device(),
              kernels);
  model.forward_backward(golden.batch());
  EXPECT_TRUE(parameters.all_released());
  EXPECT_EQ(parameters.gathers, 2 * Golden::config().layers + 3);
  EXPECT_LE(parameters.most_gathered, 2U);
  EXPECT_EQ(parameters.ready.size(), local.specs().size());  // LocalParameters refuses a second
  // The tied embedding comes last: its gradient has a part from either end of the model.
  EXPECT_EQ(parameters.ready[parameters.ready.size() - 2],
            local.parameter_id("transformer.wte.weight"));
}

TEST(ModelTest, LogitsInPiecesGiveTheSameInLessMemory) {
  constexpr int64_t kRows = Golden::kBatch * Golden::kSeqLen;
  GoldenModel whole(cpu_kernels());
  const double loss = whole.forward_backward();
  const auto logits_of = [](GoldenModel& model) {
    return model.model().logits(model.batch().tokens.first(Golden::kSeqLen), 2);
  };
  const auto logits = logits_of(whole);
  const auto nbytes_of = [](GoldenModel& model) {
    return model.device().memory_use(MemoryCategory::activations).live_bytes;
  };
  for (const int64_t rows : {int64_t{1}, int64_t{3}, kRows - 1, kRows}) {
    GoldenModel cut(cpu_kernels(), {.logits_rows = rows});
    const int64_t row_nbytes = Golden::config().vocabulary * int64_t{sizeof(float)};
    EXPECT_NEAR(nbytes_of(whole) - nbytes_of(cut), (kRows - rows) * row_nbytes, 64);
    // Products of another shape may round logits differently.
    const double rounding = loss * std::numeric_limits<float>::epsilon();
    EXPECT_NEAR(cut.forward_backward(), loss, rounding);
    EXPECT_NEAR(cut.model().loss(cut.batch()), loss, rounding);
    expect_close(logits_of(cut), {logits.begin(), logits.end()}, 1e-6, "logits");
    for (const ParameterSpec& spec : whole.parameters().specs()) {
      expect_close(cut.gradient(spec.name), whole.gradient(spec.name), rows == kRows ? 0.0 : 1e-6,
                   spec.name);
    }
  }
}

TEST(ModelTest, LargeLogitsAreCutByThemselves) {
  GptConfig config;
  config.vocabulary = 50257;
  EXPECT_EQ(logits_nbytes(config, DType::fp32, 512), 512 * 50257.0 * 4);
  EXPECT_LE(logits_nbytes(config, DType::fp32, 1 << 20), kLogitsNbytes);
  EXPECT_GT(logits_nbytes(config, DType::bf16, 1 << 20), 0.99 * kLogitsNbytes);
  EXPECT_EQ(logits_rows(10, 1e12), 1) << "a row is not cut";
}

TEST(ModelSpecTest, HeadsOfMuonWouldBeColumns) {
  OptimizerConfig optimizer;
  optimizer.muon_heads = {{"*.c_attn.weight", 2}};
  EXPECT_ERROR_OF(ConfigError, with_rules(parameter_specs(*gpt_preset("nano")), optimizer, true),
                  "c_attn.weight, whose columns are");
}

TEST(ModelFlopsTest, EveryWeightOfAProductIsSixOfATokens) {
  GptConfig config = gpt_preset("gpt2").value();
  config.vocabulary = 50257;
  constexpr double kVectors = 1024 * 768 + (12 * (4 * 768 + 9 * 768) + 2 * 768);  // and positions
  // Scores and their sums: each 2 * width a key and query, and twice as much in backward.
  constexpr double kAttention = 12.0 * 12 * 768 * 1024;
  EXPECT_DOUBLE_EQ(flops_per_token(config, 1024), 6 * (124439808 - kVectors) + kAttention);
}

TEST(ModelFlopsTest, ThePeakIsThatOfSomeMachine) {
  const auto device = make_cpu_device();
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    const auto kernels = make_kernels(*device, {.dtype = dtype});
    const double peak = measure_peak_flops(*device, *kernels, dtype);
    EXPECT_GT(peak, 1e6);
    EXPECT_LT(peak, 1e15);
    EXPECT_EQ(device->memory_use(MemoryCategory::activations).live_bytes, 0);
  }
}

ZR_INSTANTIATE_KERNELS_CONFORMANCE(with_every_dtype(cpu_kernels()));

TEST(GeluTest, MatchesDefinitionAndItsDerivative) {
  std::vector<float> x = random_floats(1003, 1, 3.0F);
  x.insert(x.end(), {0.0F, -0.0F, 1e-8F, 40.0F, -40.0F, 1e4F, -1e4F});
  std::vector<float> y(x.size());
  std::vector<float> again(x.size());
  std::vector<float> dx(x.size(), 2.0F);
  gelu(std::ssize(x), x.data(), y.data());
  gelu_backward(std::ssize(x), x.data(), again.data(), dx.data());
  EXPECT_EQ(y, again);
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    EXPECT_NEAR(y[i], gelu_reference(at), 1e-6 * std::max(1.0, std::abs(at))) << at;
    const double slope = (gelu_reference(at + 1e-4) - gelu_reference(at - 1e-4)) / 2e-4;
    EXPECT_NEAR(dx[i], 2.0 * slope, 5e-6) << at;
  }
}

TEST(GptConfigTest, PresetsHaveTheSizesOfThePaper) {
  GptConfig small = gpt_config("gpt2");
  GptConfig large = gpt_config("gpt2-xl");
  EXPECT_EQ(small.vocabulary, 0);  // left to the data
  small.vocabulary = large.vocabulary = 50257;
  // Hugging Face's models of these names count as many.
  EXPECT_EQ(parameter_count(small), 124439808);
  EXPECT_EQ(parameter_count(large), 1557611200);
  EXPECT_EQ(gpt_config("gpt2-medium").heads, 16);
}

TEST(GptConfigTest, WhatIsNoPresetIsAFile) {
  EXPECT_ERROR(gpt_config("gpt22"), "'gpt22' (did you mean \"gpt2\"?)",
               "nano, mini, gpt2, gpt2-medium");
  EXPECT_ERROR(gpt_config("/nowhere/config.json"), "/nowhere/config.json");
  const GptConfig config{300, 40, 24, 3, 4, 100, 1e-6F};
  EXPECT_EQ(gpt_config(HfConfig(to_json(config), "test")), config);
}

// A valid file with one more key.
std::string shape_with(const std::string& more) {
  return R"({"n_embd": 96, "n_layer": 2, "n_head": 12, "n_positions": 64)" + more + "}";
}

// The file of openai-community/gpt2, and a key that newer ones have.
TEST(GptConfigTest, ReadsHuggingFacesOwn) {
  const GptConfig config = gpt_config(HfConfig(R"({
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
    "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
    "n_inner": null, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null,
    "summary_first_dropout": 0.1, "summary_proj_to_labels": true, "summary_type": "cls_index",
    "summary_use_proj": true,
    "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}},
    "vocab_size": 50257})",
                                               "config.json"));
  GptConfig expected = gpt_config("gpt2");
  expected.vocabulary = 50257;
  EXPECT_EQ(config, expected);
}

TEST(GptConfigTest, ErrorsNameTheKey) {
  const std::string deep = R"({"n_embd": 16777216, "n_layer": 16777216, "n_head": 1,)";
  for (const auto& [json, message] : std::vector<std::pair<std::string, const char*>>{
           {"[1]", "expected a JSON object"},
           {"{", "expected a JSON object"},
           {"{}",
            "m.json: /n_positions is missing: expected the config.json of a Hugging Face GPT-2"},
           {R"({"n_embd": 96, "n_layers": 2, "n_head": 12, "n_positions": 64})",
            "unknown key /n_layers; did you mean /n_layer?"},
           {shape_with(R"(, "n_iner": 5)"), "/n_iner; did you mean /n_inner?"},
           {deep + R"("n_positions": 8})", "/n_layer 16777216"},
           {shape_with(R"(, "activation_function": "relu")"), "gelu_new"},
           {shape_with(R"(, "model_type": "llama")"), "llama"},
           {shape_with(R"(, "tie_word_embeddings": false)"), "tie_word_embeddings"},
           {shape_with(R"(, "layer_norm_epsilon": 0)"), "layer_norm_epsilon"},
           // The last of equal keys counts.
           {shape_with(R"(, "n_layer": 0)"), "m.json: /n_layer is 0"},
           {shape_with(R"(, "n_layer": "3")"), R"(/n_layer is "3")"},
           {shape_with(R"(, "n_embd": 99999999999)"), "/n_embd"},
           {shape_with(R"(, "n_embd": 100)"),
            "/n_head is 12: expected a divisor of the width, 100"},
           {shape_with(R"(, "n_layer": )" + std::string(400000, '[') + std::string(400000, ']')),
            "/n_layer is [[["},
           {shape_with(R"(, "n_head": null)"), "/n_head is null"}}) {
    EXPECT_ERROR(gpt_config(HfConfig(json, "m.json")), message) << json;
  }
}

TEST(DrawTokenTest, FrequenciesFollowTheSoftmax) {
  const std::vector<float> logits = {0.0F, 1.0F, 2.0F, -1.0F};
  constexpr double kTemperature = 0.5;
  constexpr int kDraws = 100000;
  std::map<int32_t, int> counts;
  for (int i = 0; i < kDraws; ++i) {
    ++counts[draw_token(logits, {.temperature = kTemperature, .top_k = 3}, (i + 0.5) / kDraws)];
  }
  double sum = 0.0;
  for (int token : {0, 1, 2}) sum += std::exp(token / kTemperature);
  for (int token : {0, 1, 2}) {
    EXPECT_NEAR(counts[token], kDraws * std::exp(token / kTemperature) / sum, 2) << token;
  }
  EXPECT_EQ(counts.count(3), 0U);
}

TEST(DrawTokenTest, ZeroTemperatureTakesTheMostLikelyAlsoOfADivergedModel) {
  EXPECT_EQ(draw_token(std::vector<float>{1.0F, 3.0F, 3.0F, -2.0F}, {.temperature = 0.0}, 0.99), 1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(draw_token(std::vector<float>{nan, 1.0F, nan}, {.temperature = 0.0}, 0.5), 1);
  const int32_t token = draw_token(std::vector<float>{nan, nan}, {}, 0.5);
  EXPECT_TRUE(token == 0 || token == 1);
}

// The tokens that follow from logits computed from scratch; of long prompts, too.
TEST(GenerateTest, KeptKeysGiveTheSameTextAsComputingAllAgain) {
  constexpr auto kContext = static_cast<size_t>(Golden::kSeqLen);
  const SamplingOptions options{.tokens = 30, .temperature = 1.0, .top_k = 5, .seed = 4};
  for (const bool recompute : {false, true}) {
    GoldenModel model(cpu_kernels(), {.recompute = recompute});
    for (std::vector<int32_t> window : {std::vector<int32_t>{1, 2, 3}, std::vector(20, 5)}) {
      const std::vector<int32_t> generated = generate(model.model(), window, options);
      ASSERT_EQ(generated.size(), 30U);
      for (size_t i = 0; i < generated.size(); ++i) {
        if (window.size() > kContext) window.erase(window.begin(), window.end() - 6);
        const auto logits = model.model().logits(window).last(37);
        const RandomStream stream{options.seed, RandomStream::Purpose::sampling, 0};
        window.push_back(draw_token(logits, options, random_uniform(stream, i)));
        EXPECT_EQ(generated[i], window.back()) << i;
      }
    }
  }
}

TEST(SampleTextTest, KeepsTextAndReplacesTheRest) {
  constexpr const char* kText = "def f():\n\treturn \u00e9 \u20ac \U0001F600\n";
  EXPECT_EQ(sample_text(kText), kText);
  EXPECT_EQ(sample_text("a\x1b[31m\r\x7f"), "a\uFFFD[31m\uFFFD\uFFFD");
  EXPECT_EQ(sample_text(std::string_view("\0", 1)), "\uFFFD");
  EXPECT_EQ(sample_text("\x8b"), "\uFFFD");            // no lead byte
  EXPECT_EQ(sample_text("\xe2\x82"), "\uFFFD\uFFFD");  // cut short
  EXPECT_EQ(sample_text("\xc0\xaf"), "\uFFFD\uFFFD");  // longer than needed
  EXPECT_EQ(sample_text("\xe0\x80\xaf"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(sample_text("\xed\xa0\x80"), "\uFFFD\uFFFD\uFFFD");            // a surrogate
  EXPECT_EQ(sample_text("\xf4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");  // beyond U+10FFFF
  EXPECT_EQ(sample_text("\xc2\x9b"), "\uFFFD\uFFFD");  // a control character of two bytes
  EXPECT_EQ(sample_text("\xe2\x28\xa1"), "\uFFFD(\uFFFD");
}

TEST(RandomNormalTest, DependsOnPositionOnly) {
  const RandomStream stream{7, RandomStream::Purpose::parameters, 3};
  std::vector<float> all(40000);
  random_normal(stream, 0, 1.0F, all);
  for (int64_t begin : {0, 1, 2, 3, 5, 17, 39990}) {
    std::vector<float> part(9);
    random_normal(stream, begin, 1.0F, part);
    EXPECT_EQ(part, std::vector<float>(all.begin() + begin, all.begin() + begin + 9)) << begin;
  }
}

TEST(RandomNormalTest, HasTheMomentsOfANormalDistribution) {
  std::vector<float> values(200000);
  random_normal({1, RandomStream::Purpose::parameters, 0}, 0, 0.5F, values);
  const auto moment = [&](int power) {
    double sum = 0.0;
    for (const double value : values) sum += std::pow(value / 0.5, power);
    return sum / static_cast<double>(values.size());
  };
  EXPECT_NEAR(moment(1), 0.0, 0.01);
  EXPECT_NEAR(moment(2), 1.0, 0.02);
  EXPECT_NEAR(moment(4), 3.0, 0.16);
}

TEST(RandomNormalTest, StreamsDiffer) {
  const auto first = [](const RandomStream& stream) {
    float value = 0.0F;
    random_normal(stream, 0, 1.0F, {&value, 1});
    return value;
  };
  const RandomStream base{7, RandomStream::Purpose::parameters, 3};
  EXPECT_NE(first(base), first({8, RandomStream::Purpose::parameters, 3}));
  EXPECT_NE(first(base), first({uint64_t{7} << 32, RandomStream::Purpose::parameters, 3}));
  EXPECT_NE(first(base), first({7, RandomStream::Purpose::sampling, 3}));
  EXPECT_NE(first(base), first({7, RandomStream::Purpose::parameters, 4}));
}

TEST(RandomUniformTest, FillsTheUnitInterval) {
  const RandomStream stream{7, RandomStream::Purpose::sampling, 0};
  double sum = 0.0;
  for (uint64_t i = 0; i < 10000; ++i) {
    const double value = random_uniform(stream, i);
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    sum += value;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.01);
}

}  // namespace
}  // namespace zerorun::train::testing
