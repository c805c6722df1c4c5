#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "tests/zero/toy_model.h"
#include "zerorun/engine.h"

// Gradients of the toy model that a rank contributes itself, without the model's backward.
namespace zerorun::testing {

// This rank's gradient of a parameter for one of several contributions, in the model's dtype.
inline std::vector<float> gradient_of(const Engine& engine, ParameterId id, int rank, int64_t part,
                                      int64_t step) {
  std::vector<float> values(static_cast<size_t>(engine.numel(id)));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = ToyModel::noise(id, static_cast<int64_t>(i), rank, part, step);
  }
  return values;
}

inline void contribute(Engine& engine, ParameterId id, int rank, int64_t part, int64_t step) {
  std::vector<float> values = gradient_of(engine, id, rank, part, step);
  engine.contribute(id, view_of(std::span<float>(values)));
}

// The parameters that have gradients, last first, as backward gives them.
inline std::vector<ParameterId> trainable(const Engine& engine) {
  std::vector<ParameterId> ids;
  for (ParameterId id = 0; id < static_cast<ParameterId>(engine.parameters().size()); ++id) {
    const ParameterSpec& spec = engine.parameters()[static_cast<size_t>(id)];
    if (spec.trainable && spec.alias_of.empty()) ids.push_back(id);
  }
  std::reverse(ids.begin(), ids.end());
  return ids;
}

// Backward that writes value(parameter, element) as every gradient.
template <typename Value>
void write_gradients(Engine& engine, const Value& value) {
  for (const ParameterId id : trainable(engine)) {
    const TensorView view = engine.gradient(id).view;
    for (int64_t i = 0; i < view.numel; ++i) ToyModel::store(view, i, value(id, i));
    engine.grad_ready(id);
  }
}

}  // namespace zerorun::testing
