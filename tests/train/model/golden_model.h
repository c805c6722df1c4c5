#pragma once

#include "testing/local_parameters.h"
#include "tests/train/model/kernels_under_test.h"
#include "train/model/model.h"
#include "zerorun/checkpoint.h"

namespace zerorun::train::testing {

// The file that make_golden.py writes; all tensors as doubles.
class Golden {
 public:
  Golden() {
    const SafetensorsReader file(test_paths::tests() + "/train/data/golden.safetensors");
    for (const SafetensorsReader::Tensor& tensor : file.tensors()) {
      Doubles& values = tensors_[tensor.name];
      if (tensor.data.dtype == DType::int64) {
        std::ranges::copy(tensor.data.span<int64_t>(), std::back_inserter(values));
      } else {
        std::ranges::copy(tensor.data.span<float>(), std::back_inserter(values));
      }
    }
  }

  static GptConfig config() {
    return {.vocabulary = 37, .positions = 13, .width = 24, .layers = 2, .heads = 3, .inner = 96};
  }
  static constexpr int64_t kBatch = 2;
  static constexpr int64_t kSeqLen = 11;

  const Doubles& tensor(const std::string& name) const { return tensors_.at(name); }

 private:
  std::map<std::string, Doubles> tensors_;
};

// A model with the golden file's parameters.
class GoldenModel {
 public:
  explicit GoldenModel(const KernelsUnderTest& under_test,
                       const ModelOptions& options = {.recompute = false})
      : device_(under_test.make_device()),
        kernels_(under_test.make_kernels(*device_, under_test.parameters)),
        parameters_(parameter_specs(Golden::config()), under_test.parameters, *device_),
        model_(Golden::config(),
               {Golden::kBatch, Golden::kSeqLen, options.recompute, options.logits_rows},
               parameters_, *device_, *kernels_) {
    for (const ParameterSpec& spec : parameters_.specs()) {
      set(spec.name, golden_.tensor("value." + spec.name));
    }
  }
  double forward_backward(double loss_scale = 1.0) {
    model_.forward_backward(batch(), loss_scale);
    parameters_.end_micro_step();
    return model_.take_loss();
  }
  void set(const std::string& name, const Doubles& values) {
    parameters_.set_parameter(parameters_.parameter_id(name),
                              std::vector<float>(values.begin(), values.end()));
  }
  Doubles gradient(const std::string& name) const {
    return read_back(*device_, parameters_.gradient_view(parameters_.parameter_id(name)));
  }
  Doubles value(const std::string& name) const {
    return read_back(*device_, parameters_.parameter(parameters_.parameter_id(name)));
  }
  double activation_rounding() const { return rounding_of(kernels_->activation_dtype()); }
  // With activations of 16 bits, every layer adds to the error.
  double gradient_tolerance(DType parameters) const {
    const double once = 2 * rounding_of(parameters);
    return kernels_->activation_dtype() == DType::fp32 ? std::max(1e-5, once) : 10 * once;
  }
  Batch batch() const { return {tokens_, targets_}; }
  const Golden& golden() const { return golden_; }
  Model& model() { return model_; }
  LocalParameters& parameters() { return parameters_; }
  Device& device() { return *device_; }

 private:
  static std::vector<int32_t> integers(const Doubles& from) { return {from.begin(), from.end()}; }

  Golden golden_;
  std::vector<int32_t> tokens_ = integers(golden_.tensor("tokens"));
  std::vector<int32_t> targets_ = integers(golden_.tensor("targets"));
  std::shared_ptr<Device> device_;
  std::unique_ptr<Kernels> kernels_;
  LocalParameters parameters_;
  Model model_;
};

}  // namespace zerorun::train::testing
