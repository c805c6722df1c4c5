#pragma once

#include "testing/local_parameters.h"
#include "tests/train/model/golden.h"
#include "tests/train/model/kernels_under_test.h"
#include "train/model/model.h"

namespace zerorun::train::testing {

// A model with the golden file's parameters.
class GoldenModel {
 public:
  explicit GoldenModel(const KernelsUnderTest& under_test, bool recompute = false)
      : device_(under_test.make_device()),
        kernels_(under_test.make_kernels(*device_, under_test.parameters)),
        parameters_(parameter_specs(Golden::config()), under_test.parameters, *device_),
        model_(Golden::config(), {Golden::kBatch, Golden::kSeqLen, recompute}, parameters_,
               *device_, *kernels_) {
    golden_.load_into(parameters_);
  }
  double forward_backward(double loss_scale = 1.0) {
    model_.forward_backward({tokens_, targets_}, loss_scale);
    parameters_.end_micro_step();
    return model_.take_loss();
  }
  Doubles gradient(const std::string& name) const {
    return read_back(*device_, parameters_.gradient_view(parameters_.parameter_id(name)));
  }
  Doubles value(const std::string& name) const {
    return read_back(*device_, parameters_.parameter(parameters_.parameter_id(name)));
  }
  DType activations() const { return kernels_->activation_dtype(); }
  double activation_rounding() const { return rounding_of(activations()); }
  // With activations of 16 bits, every layer adds to the error.
  double gradient_tolerance(DType parameters) const {
    const double once = 2 * rounding_of(parameters);
    return activations() == DType::fp32 ? std::max(1e-5, once) : 10 * once;
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
  std::shared_ptr<Device> device_;
  std::unique_ptr<Kernels> kernels_;
  LocalParameters parameters_;
  Model model_;
};

}  // namespace zerorun::train::testing
