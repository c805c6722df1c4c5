#include "train/model/model.h"

#include "tests/common.h"
#include "tests/train/model/model_conformance.h"

namespace zerorun::train::testing {
namespace {

const KernelsUnderTest kCpuKernels{"cpu", [] { return make_cpu_device(); },
                                   [](Device&, DType) { return std::make_unique<CpuKernels>(); }};

INSTANTIATE_TEST_SUITE_P(Kernels, ModelConformance,
                         ::testing::ValuesIn(with_every_dtype(kCpuKernels)), name_of_case);

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

}  // namespace
}  // namespace zerorun::train::testing
