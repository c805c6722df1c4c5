#include "train/model/model.h"

#include "tests/common.h"
#include "tests/train/model/kernels_conformance.h"
#include "tests/train/model/model_conformance.h"
#include "train/cpu/matrix.h"
#include "train/model/kernels.h"
#include "train/model/parameters.h"
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
  const Golden golden;
  const auto device = make_cpu_device();
  CpuKernels kernels;
  LocalParameters local(parameter_specs(Golden::config()), DType::fp32, *device);
  golden.load_into(local);
  RecordingParameters parameters(local);
  Model model(Golden::config(), {Golden::kBatch, Golden::kSeqLen, false}, parameters, *device,
              kernels);
  const auto tokens = golden.tokens("tokens");
  const auto targets = golden.tokens("targets");
  model.forward_backward({tokens, targets});
  EXPECT_TRUE(parameters.all_released());
  EXPECT_EQ(parameters.gathers, 2 * Golden::config().layers + 3);
  EXPECT_LE(parameters.most_gathered, 2U);
  EXPECT_EQ(parameters.ready.size(), local.specs().size());
  EXPECT_EQ(std::set<ParameterId>(parameters.ready.begin(), parameters.ready.end()).size(),
            local.specs().size());
  // The tied embedding comes last: its gradient has a part from either end of the model.
  EXPECT_EQ(parameters.ready[parameters.ready.size() - 2],
            local.parameter_id("transformer.wte.weight"));
}

// Results of one way to cut the logits, and the memory for activations.
struct CutResults {
  double loss = 0.0;
  double evaluated = 0.0;
  Doubles gradients;
  std::vector<float> logits;
  int64_t nbytes = 0;
};

CutResults results_of(int64_t logits_rows) {
  const Golden golden;
  const auto device = make_cpu_device();
  CpuKernels kernels;
  LocalParameters parameters(parameter_specs(Golden::config()), DType::fp32, *device);
  golden.load_into(parameters);
  Model model(
      Golden::config(),
      {.micro_batch = Golden::kBatch, .seq_len = Golden::kSeqLen, .logits_rows = logits_rows},
      parameters, *device, kernels);
  const auto tokens = golden.tokens("tokens");
  const auto targets = golden.tokens("targets");
  CutResults found;
  found.nbytes = static_cast<int64_t>(device->memory_use(MemoryCategory::activations).live_bytes);
  model.forward_backward({tokens, targets});
  found.loss = model.take_loss();
  for (size_t id = 0; id < parameters.specs().size(); ++id) {
    const TensorView view = parameters.gradient_view(static_cast<ParameterId>(id));
    found.gradients.insert(found.gradients.end(), view.as<float>(), view.as<float>() + view.numel);
  }
  parameters.end_micro_step();
  found.evaluated = model.loss({tokens, targets});
  const auto logits = model.logits(std::span(tokens).first(Golden::kSeqLen), 2);
  found.logits.assign(logits.begin(), logits.end());
  return found;
}

TEST(ModelTest, LogitsInPiecesGiveTheSameInLessMemory) {
  constexpr int64_t kRows = Golden::kBatch * Golden::kSeqLen;
  const CutResults whole = results_of(0);
  for (const int64_t rows : {int64_t{1}, int64_t{3}, kRows - 1}) {
    const CutResults cut = results_of(rows);
    // Products of another shape may round logits differently.
    const double rounding = whole.loss * std::numeric_limits<float>::epsilon();
    EXPECT_NEAR(cut.loss, whole.loss, rounding);
    EXPECT_NEAR(cut.evaluated, whole.evaluated, rounding);
    EXPECT_EQ(cut.logits.size(), whole.logits.size());
    for (size_t i = 0; i < whole.logits.size(); ++i) {
      ASSERT_NEAR(cut.logits[i], whole.logits[i], 1e-5) << i;
    }
    ASSERT_EQ(cut.gradients.size(), whole.gradients.size());
    for (size_t i = 0; i < whole.gradients.size(); ++i) {
      ASSERT_NEAR(cut.gradients[i], whole.gradients[i], 1e-6) << i;
    }
    const int64_t row_nbytes = Golden::config().vocabulary * int64_t{sizeof(float)};
    EXPECT_NEAR(whole.nbytes - cut.nbytes, (kRows - rows) * row_nbytes, 64);
  }
  const CutResults same = results_of(kRows);
  EXPECT_EQ(same.gradients, whole.gradients);
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
  EXPECT_THAT([&] { with_rules(parameter_specs(*gpt_preset("nano")), optimizer, true); },
              ThrowsMessage<ConfigError>(HasSubstr("c_attn.weight, whose columns are")));
}

TEST(ModelFlopsTest, EveryWeightOfAProductIsSixOfATokens) {
  GptConfig config = gpt_preset("gpt2").value();
  config.vocabulary = 50257;
  double weights = 0;
  for (const ParameterSpec& spec : parameter_specs(config)) {
    if (spec.shape.size() == 2 && !spec.name.ends_with("wpe.weight")) {
      weights += static_cast<double>(spec.numel());
    }
  }
  // Scores and their sums: each 2 * width a key and query, and twice as much in backward.
  const double attention = 12.0 * 12 * 768 * 1024;
  EXPECT_DOUBLE_EQ(flops_per_token(config, 1024), 6 * weights + attention);
  EXPECT_NEAR(flops_per_token(config, 1024), 0.855e9, 0.001e9);
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
  const auto dy = random_floats(std::ssize(x), 2);
  std::vector<float> y(x.size());
  std::vector<float> again(x.size());
  std::vector<float> dx = dy;
  gelu(std::ssize(x), x.data(), y.data());
  gelu_backward(std::ssize(x), x.data(), again.data(), dx.data());
  EXPECT_EQ(y, again);
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    EXPECT_NEAR(y[i], gelu_reference(at), 1e-6 * std::max(1.0, std::abs(at))) << at;
    const double slope = (gelu_reference(at + 1e-4) - gelu_reference(at - 1e-4)) / 2e-4;
    EXPECT_NEAR(dx[i], dy[i] * slope, 5e-6 * std::max(1.0, std::abs(double{dy[i]}))) << at;
  }
}

}  // namespace
}  // namespace zerorun::train::testing
