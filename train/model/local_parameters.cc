#include "train/model/local_parameters.h"

#include <functional>
#include <numeric>

#include "core/check.h"

namespace zerorun::train {

LocalParameters::LocalParameters(std::vector<ParameterSpec> specs, DType dtype, Device& device)
    : specs_(std::move(specs)), dtype_(dtype), device_(device) {
  for (const ParameterSpec& spec : specs_) {
    Entry entry;
    entry.numel =
        std::accumulate(spec.shape.begin(), spec.shape.end(), int64_t{1}, std::multiplies<>());
    const size_t nbytes = static_cast<size_t>(entry.numel) * size_of(dtype);
    entry.value = device.allocate(nbytes, MemoryCategory::parameters);
    entry.gradient = device.allocate(nbytes, MemoryCategory::gradients);
    ids_.emplace(spec.name, static_cast<ParameterId>(entries_.size()));
    modules_.emplace(spec.module, static_cast<ModuleId>(modules_.size()));
    entries_.push_back(std::move(entry));
  }
}

void LocalParameters::initialize(const Initializer& initializer) {
  for (size_t id = 0; id < entries_.size(); ++id) {
    std::vector<float> values(static_cast<size_t>(entries_[id].numel));
    initializer.fill(static_cast<ParameterId>(id), 0, values);
    set_parameter(static_cast<ParameterId>(id), values);
  }
}

void LocalParameters::set_parameter(ParameterId id, std::span<const float> values) {
  Stream& stream = device_.inline_stream();
  const Buffer wide = device_.allocate(values.size_bytes(), MemoryCategory::other);
  const TensorView view = view_of(wide, DType::fp32, std::ssize(values));
  device_.upload(stream, values.data(), view);
  device_.cast(stream, view, parameter(id));
  stream.synchronize();
}

void LocalParameters::end_micro_step() {
  for (Entry& entry : entries_) entry.contribution = Contribution::none;
}

ParameterId LocalParameters::parameter_id(std::string_view name) const {
  const auto found = ids_.find(name);
  if (found == ids_.end()) fail<ConfigError>("there is no parameter {}", name);
  return found->second;
}

ModuleId LocalParameters::module_id(std::string_view name) const {
  const auto found = modules_.find(name);
  if (found == modules_.end()) fail<ConfigError>("there is no module {}", name);
  return found->second;
}

TensorView LocalParameters::parameter(ParameterId id) const {
  const Entry& entry = entries_.at(static_cast<size_t>(id));
  return view_of(entry.value, dtype_, entry.numel);
}

GradientView LocalParameters::gradient(ParameterId id) {
  Entry& entry = entries_.at(static_cast<size_t>(id));
  ZR_CHECK(entry.contribution != Contribution::complete, "{} is already complete",
           specs_[static_cast<size_t>(id)].name);
  const bool accumulate = entry.contribution == Contribution::written;
  entry.contribution = Contribution::written;
  return {gradient_view(id), accumulate};
}

void LocalParameters::grad_ready(ParameterId id) {
  Entry& entry = entries_.at(static_cast<size_t>(id));
  ZR_CHECK(entry.contribution == Contribution::written, "{} has no gradient, or is complete",
           specs_[static_cast<size_t>(id)].name);
  entry.contribution = Contribution::complete;
}

TensorView LocalParameters::gradient_view(ParameterId id) const {
  const Entry& entry = entries_.at(static_cast<size_t>(id));
  return view_of(entry.gradient, dtype_, entry.numel);
}

}  // namespace zerorun::train
