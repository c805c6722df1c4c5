#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "train/model/parameters.h"

namespace zerorun::train {

// Parameters and gradients of a single process without an engine: nothing is sharded, reduced or
// updated. Used in tests and to time forward and backward alone.
class LocalParameters final : public ParameterAccess {
 public:
  LocalParameters(std::vector<ParameterSpec> specs, DType dtype, Device& device);

  const std::vector<ParameterSpec>& specs() const { return specs_; }
  void initialize(const Initializer& initializer);
  // Rounds the values to the parameters' dtype.
  void set_parameter(ParameterId id, std::span<const float> values);
  void end_micro_step();

  ParameterId parameter_id(std::string_view name) const override;
  ModuleId module_id(std::string_view name) const override;
  void gather(ModuleId /*module*/) override {}
  void release(ModuleId /*module*/) override {}
  TensorView parameter(ParameterId id) const override;
  GradientView gradient(ParameterId id) override;
  void grad_ready(ParameterId id) override;
  // Returns the gradient that backward wrote in the last micro-step.
  TensorView gradient_view(ParameterId id) const;

 private:
  enum class Contribution : uint8_t { none, written, complete };
  struct Entry {
    Buffer value;
    Buffer gradient;
    int64_t numel = 0;
    Contribution contribution = Contribution::none;
  };

  std::vector<ParameterSpec> specs_;
  DType dtype_;
  Device& device_;
  std::vector<Entry> entries_;
  std::map<std::string, ParameterId, std::less<>> ids_;
  std::map<std::string, ModuleId, std::less<>> modules_;
};

}  // namespace zerorun::train
