#include "examples/train/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "examples/train/cpu/cpu_kernels.h"
#include "examples/train/local_parameters.h"
#include "tests/train/golden.h"
#include "tests/train/reference.h"

namespace zerorun::train::testing {
namespace {

// A model with the golden file's parameters.
class GoldenModel {
 public:
  explicit GoldenModel(DType dtype = DType::fp32, bool recompute = false)
      : parameters_(parameter_specs(Golden::config()), dtype, *device_),
        model_(Golden::config(), {Golden::kBatch, Golden::kSeqLen, recompute}, parameters_,
               *device_, kernels_) {
    golden_.load_into(parameters_);
  }
  double forward_backward(double loss_scale = 1.0) {
    const double loss = model_.forward_backward({tokens_, targets_}, loss_scale);
    parameters_.end_micro_step();
    return loss;
  }
  std::vector<float> gradient(const std::string& name) const {
    const TensorView view = parameters_.gradient_view(parameters_.parameter_id(name));
    std::vector<float> values;
    for (int64_t i = 0; i < view.numel; ++i) values.push_back(element(view, i));
    return values;
  }
  const Golden& golden() const { return golden_; }
  Model& model() { return model_; }
  LocalParameters& parameters() { return parameters_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::vector<int32_t>& targets() const { return targets_; }

 private:
  Golden golden_;
  std::vector<int32_t> tokens_ = golden_.tokens("tokens");
  std::vector<int32_t> targets_ = golden_.tokens("targets");
  std::shared_ptr<Device> device_ = make_cpu_device();
  CpuKernels kernels_;
  LocalParameters parameters_;
  Model model_;
};

TEST(ModelTest, LossAndGradientsMatchPyTorch) {
  GoldenModel model;
  const double expected = model.golden().tensor("loss")[0];
  EXPECT_NEAR(model.forward_backward(), expected, 1e-6 * expected);
  for (const ParameterSpec& spec : model.parameters().specs()) {
    expect_close(model.gradient(spec.name), model.golden().tensor("gradient." + spec.name), 1e-5,
                 spec.name);
  }
}

TEST(ModelTest, EvaluationGivesTheTrainingLossAndPyTorchsLogits) {
  GoldenModel model;
  EXPECT_EQ(model.model().loss({model.tokens(), model.targets()}), model.forward_backward());
  const std::vector<int32_t> first(model.tokens().begin(),
                                   model.tokens().begin() + Golden::kSeqLen);
  const auto logits = model.model().logits(first);
  const std::vector<double>& all = model.golden().tensor("logits");
  expect_close(logits, {all.begin(), all.begin() + std::ssize(logits)}, 1e-5, "logits");
}

TEST(ModelTest, TokensOneByOneGiveTheSameLogits) {
  for (bool recompute : {false, true}) {
    GoldenModel model(DType::fp32, recompute);
    const std::vector<int32_t> tokens(model.tokens().begin(),
                                      model.tokens().begin() + Golden::kSeqLen);
    const auto all = model.model().logits(tokens);
    const Doubles last_of_all(all.end() - Golden::config().vocabulary, all.end());
    std::span<const float> last;
    for (size_t count = 4; count <= tokens.size(); ++count) {
      const int64_t first = count == 4 ? 0 : static_cast<int64_t>(count) - 1;
      last = model.model().logits(std::span(tokens).first(count), first);
    }
    ASSERT_EQ(std::ssize(last), Golden::config().vocabulary);
    expect_close(last, last_of_all, 1e-6, "logits of the last token");
  }
}

TEST(ModelTest, RecomputedBlocksGiveTheSameBits) {
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    GoldenModel kept(dtype);
    GoldenModel recomputed(dtype, /*recompute=*/true);
    EXPECT_EQ(kept.forward_backward(), recomputed.forward_backward());
    for (const ParameterSpec& spec : kept.parameters().specs()) {
      EXPECT_EQ(kept.gradient(spec.name), recomputed.gradient(spec.name)) << spec.name;
    }
  }
}

// The parameters are rounded, so the reference is the fp32 model with the rounded ones.
void expect_rounded_gradients(DType dtype, double loss_scale, double tolerance) {
  GoldenModel narrow(dtype);
  GoldenModel wide(DType::fp32);
  for (const ParameterSpec& spec : wide.parameters().specs()) {
    const ParameterId id = wide.parameters().parameter_id(spec.name);
    const TensorView from = narrow.parameters().parameter(id);
    const TensorView to = wide.parameters().parameter(id);
    for (int64_t i = 0; i < from.numel; ++i) to.as<float>()[i] = element(from, i);
  }
  EXPECT_NEAR(narrow.forward_backward(loss_scale), wide.forward_backward(), 1e-6);
  for (const ParameterSpec& spec : wide.parameters().specs()) {
    Doubles expected = widened(wide.gradient(spec.name));
    for (double& value : expected) value *= loss_scale;
    expect_close(narrow.gradient(spec.name), expected, tolerance, spec.name);
  }
}

TEST(ModelTest, SixteenBitGradientsAreTheRoundedFp32Gradients) {
  expect_rounded_gradients(DType::bf16, 1.0, 8e-3);
  expect_rounded_gradients(DType::fp16, 1024.0, 1e-3);
}

TEST(ModelTest, TheLossScaleMultipliesGradientsAndNotTheLoss) {
  GoldenModel plain;
  GoldenModel scaled;
  EXPECT_EQ(plain.forward_backward(), scaled.forward_backward(4096.0));
  for (const ParameterSpec& spec : plain.parameters().specs()) {
    std::vector<float> expected = plain.gradient(spec.name);
    for (float& value : expected) value *= 4096.0F;  // exact
    EXPECT_EQ(scaled.gradient(spec.name), expected) << spec.name;
  }
}

TEST(ModelTest, AShorterBatchNeedsNoOtherModel) {
  GoldenModel model;
  const std::span tokens = std::span(model.tokens()).first(Golden::kSeqLen);
  const std::span targets = std::span(model.targets()).first(Golden::kSeqLen);
  GoldenModel other;
  const double loss = model.model().loss({tokens, targets});
  model.forward_backward();
  EXPECT_EQ(model.model().loss({tokens, targets}), loss);
}

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

// At stage 3 parameters move in memory from step to step; see Kernels.
TEST(ModelTest, ResultsDoNotDependOnAlignment) {
  GptConfig config = gpt_config("nano");
  config.layers = 1;
  CpuKernels kernels;
  const LinearShape shape{48, config.width, config.inner};
  const auto x = random_floats(shape.rows * shape.in, 1);
  auto weights = random_floats(shape.in * shape.out, 2);
  std::vector<float> expected(static_cast<size_t>(shape.rows * shape.out));
  std::vector<float> actual(expected.size());
  kernels.linear(shape, x.data(), view_of(std::span(weights)), {}, nullptr, expected.data());
  for (size_t shift = 1; shift < 8; ++shift) {
    std::vector<float> moved(weights.size() + shift);
    const std::span<float> view(moved.data() + shift, weights.size());
    std::copy(weights.begin(), weights.end(), view.begin());
    kernels.linear(shape, x.data(), view_of(view), {}, nullptr, actual.data());
    EXPECT_EQ(actual, expected) << shift;
  }
}

}  // namespace
}  // namespace zerorun::train::testing
