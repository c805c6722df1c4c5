#pragma once

#include "tests/comm/reference.h"
#include "zerorun/engine.h"

namespace zerorun::testing {

inline const ParameterSpec& spec_of(const Engine& engine, ParameterId id) {
  return engine.parameters()[static_cast<size_t>(id)];
}

// Those of a module; without a name all.
inline std::vector<ParameterId> parameters_of(const Engine& engine,
                                              const std::string& module = {}) {
  std::vector<ParameterId> ids;
  for (ParameterId id = 0; id < std::ssize(engine.parameters()); ++id) {
    if (module.empty() || spec_of(engine, id).module == module) ids.push_back(id);
  }
  return ids;
}

// In the order of their parameters.
inline std::vector<std::string> modules_of(const Engine& engine) {
  std::vector<std::string> modules;
  for (const ParameterSpec& spec : engine.parameters()) {
    if (modules.empty() || modules.back() != spec.module) modules.push_back(spec.module);
  }
  return modules;
}

// Calls `use` while the module's parameters are there.
template <typename Use>
void with_module(Engine& engine, const std::string& module, const Use& use) {
  engine.gather(engine.module_id(module));
  use();
  engine.release(engine.module_id(module));
}
// Uses a module for nothing.
inline void visit(Engine& engine, const std::string& module) {
  with_module(engine, module, [] {});
}

// Calls `of` for each parameter that has a gradient, from the last module to the first, each of
// which is gathered meanwhile.
template <typename Of>
void backward_pass(Engine& engine, const Of& of) {
  const std::vector<std::string> modules = modules_of(engine);
  for (size_t m = modules.size(); m-- > 0;) {
    with_module(engine, modules[m], [&] {
      for (const ParameterId id : parameters_of(engine, modules[m])) {
        if (spec_of(engine, id).trainable) of(id);
      }
    });
  }
}

// A model whose gradient is a fixed function of (parameter value, element, rank, micro-step, step),
// so that a scalar reference can follow a whole training run.
class ToyModel {
 public:
  // Shapes with 0, 1, primes and chunk multiples; a tied and a frozen parameter; two groups.
  static std::vector<ParameterSpec> specs() {
    return {
        {"embed.weight", {67, 13}, "embed", 0, true, ""},
        {"h.0.weight", {37, 41}, "h.0", 0, true, ""},
        {"h.0.bias", {1}, "h.0", 1, true, ""},
        {"h.0.empty", {0, 5}, "h.0", 1, true, ""},
        {"h.1.weight", {512}, "h.1", 0, true, ""},
        {"h.1.frozen", {19, 31}, "h.1", 0, false, ""},
        {"h.1.bias", {97}, "h.1", 1, true, ""},
        {"expert.weight", {23, 29}, "expert", 0, true, ""},
        {"head.weight", {67, 13}, "head", 0, true, "embed.weight"},
        {"head.bias", {67}, "head", 1, true, ""},
    };
  }
  static std::vector<ParameterGroup> groups() {
    return {{"decay", 0.01F, 0.1F}, {"plain", 0.02F, 0.0F}};
  }

  static float initial(ParameterId id, int64_t element) {
    return 0.25F * std::sin(static_cast<float>(id * 1000 + element));
  }

  // Multiples of 2^-12 below 1/8: sums over ranks and micro-steps are exact in fp32.
  static float noise(ParameterId id, int64_t element, int rank, int64_t micro, int64_t step) {
    uint64_t x = static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15ULL + static_cast<uint64_t>(element);
    x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9ULL + static_cast<uint64_t>(rank * 131 + micro);
    x = (x ^ (x >> 29)) * 0x94D049BB133111EBULL + static_cast<uint64_t>(step);
    x ^= x >> 32;
    return (static_cast<float>(x % 256) - 128.0F) / 1024.0F;
  }

  static float load(TensorView view, int64_t i) { return float_at(view.data, view.dtype, i); }
  static std::vector<float> floats_of(TensorView view) {
    std::vector<float> values;
    for (int64_t i = 0; i < view.numel; ++i) values.push_back(load(view, i));
    return values;
  }
  // All of a parameter, whose module is gathered for it.
  static std::vector<float> full_values(Engine& engine, ParameterId id) {
    std::vector<float> values;
    with_module(engine, spec_of(engine, id).module,
                [&] { values = floats_of(engine.parameter(id)); });
    return values;
  }
  static void store(TensorView view, int64_t i, float value) {
    set_float(view.data, view.dtype, i, value);
  }

  // Gradient of one use of a parameter.
  static float gradient(float value, ParameterId id, int64_t element, int rank, int64_t micro,
                        int64_t step) {
    return noise(id, element, rank, micro, step) + std::round(value * 64.0F) / 512.0F;
  }

  // True if `rank` uses the module in this micro-step.
  using UsesFunction = std::function<bool(const std::string& module, int rank)>;
  static bool everything(const std::string& /*module*/, int /*rank*/) { return true; }

  // Forward over all modules, backward in reverse; gradients are multiplied by `scale`.
  static bool micro_step(Engine& engine, int rank, int64_t micro, int64_t step,
                         const UsesFunction& uses = everything, float scale = 1.0F) {
    std::vector<std::string> order = modules_of(engine);
    std::erase_if(order, [&](const std::string& module) { return !uses(module, rank); });
    double checksum = 0;
    for (const std::string& module : order) {
      with_module(engine, module, [&] {
        for (const ParameterId id : parameters_of(engine, module)) {
          for (int64_t i = 0; i < engine.numel(id); ++i) checksum += load(engine.parameter(id), i);
        }
      });
    }
    for (size_t m = order.size(); m-- > 0;) {
      with_module(engine, order[m],
                  [&] { backward_module(engine, order[m], rank, micro, step, scale); });
    }
    return std::isfinite(checksum) && engine.end_micro_step();
  }

 private:
  static void backward_module(Engine& engine, const std::string& module, int rank, int64_t micro,
                              int64_t step, float scale) {
    for (const ParameterId id : parameters_of(engine, module)) {
      const ParameterSpec& spec = spec_of(engine, id);
      if (!spec.trainable) continue;
      const TensorView value = engine.parameter(id);
      const GradientView gradient_view = engine.gradient(id);
      for (int64_t i = 0; i < engine.numel(id); ++i) {
        float g = gradient(load(value, i), id, i, rank, micro, step);
        g *= scale * static_cast<float>(engine.loss_scale());
        if (gradient_view.accumulate) g += load(gradient_view.view, i);
        store(gradient_view.view, i, g);
      }
      // The tied parameter is complete when its owner's module is done.
      if (spec.alias_of.empty()) engine.grad_ready(id);
    }
  }
};

}  // namespace zerorun::testing
