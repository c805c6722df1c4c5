#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "train/model/parameters.h"

namespace zerorun::train {

// Parameters and gradients of a single process without an engine: nothing is sharded, reduced or
// updated. Used in tests and to time forward and backward alone.
class LocalParameters final : public ParameterAccess {
 public:
  LocalParameters(std::vector<ParameterSpec> specs, DType dtype, Device& device)
      : specs_(std::move(specs)), dtype_(dtype), device_(device) {
    for (const ParameterSpec& spec : specs_) {
      const size_t nbytes = static_cast<size_t>(spec.numel()) * size_of(dtype);
      ids_.emplace(spec.name, static_cast<ParameterId>(entries_.size()));
      modules_.emplace(spec.module, static_cast<ModuleId>(modules_.size()));
      entries_.push_back({device.allocate(nbytes, MemoryCategory::parameters),
                          device.allocate(nbytes, MemoryCategory::gradients)});
    }
  }

  const std::vector<ParameterSpec>& specs() const { return specs_; }
  void initialize(const Initializer& initializer) {
    for (ParameterId id = 0; static_cast<size_t>(id) < specs_.size(); ++id) {
      std::vector<float> values(static_cast<size_t>(spec(id).numel()));
      initializer.fill(id, 0, values);
      set_parameter(id, values);
    }
  }
  // Rounds the values to the parameters' dtype.
  void set_parameter(ParameterId id, std::span<const float> values) {
    Stream& stream = device_.inline_stream();
    const Buffer wide = device_.allocate(values.size_bytes(), MemoryCategory::other);
    const TensorView view = view_of(wide, DType::fp32, std::ssize(values));
    device_.upload(stream, values.data(), view);
    device_.cast(stream, view, parameter(id));
    stream.synchronize();
  }
  void end_micro_step() {
    for (Entry& entry : entries_) entry.state = State::none;
  }

  ParameterId parameter_id(std::string_view name) const override {
    const auto found = ids_.find(name);
    if (found == ids_.end()) fail<ConfigError>("there is no parameter {}", name);
    return found->second;
  }
  ModuleId module_id(std::string_view name) const override {
    const auto found = modules_.find(name);
    if (found == modules_.end()) fail<ConfigError>("there is no module {}", name);
    return found->second;
  }
  void gather(ModuleId /*module*/) override {}
  void release(ModuleId /*module*/) override {}
  TensorView parameter(ParameterId id) const override {
    return view_of(entries_.at(static_cast<size_t>(id)).value, dtype_, spec(id).numel());
  }
  GradientView gradient(ParameterId id) override {
    State& state = entries_.at(static_cast<size_t>(id)).state;
    ZR_CHECK(state != State::complete, "{} is already complete", spec(id).name);
    return {gradient_view(id), std::exchange(state, State::written) == State::written};
  }
  void grad_ready(ParameterId id) override {
    State& state = entries_.at(static_cast<size_t>(id)).state;
    ZR_CHECK(state == State::written, "{} has no gradient, or is complete", spec(id).name);
    state = State::complete;
  }
  // Returns the gradient that backward wrote in the last micro-step.
  TensorView gradient_view(ParameterId id) const {
    return view_of(entries_.at(static_cast<size_t>(id)).gradient, dtype_, spec(id).numel());
  }

 private:
  enum class State : uint8_t { none, written, complete };  // of a gradient
  struct Entry {
    Buffer value;
    Buffer gradient;
    State state = State::none;
  };
  const ParameterSpec& spec(ParameterId id) const { return specs_.at(static_cast<size_t>(id)); }

  std::vector<ParameterSpec> specs_;
  DType dtype_;
  Device& device_;
  std::vector<Entry> entries_;
  std::map<std::string, ParameterId, std::less<>> ids_;
  std::map<std::string, ModuleId, std::less<>> modules_;
};

}  // namespace zerorun::train
