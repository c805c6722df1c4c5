#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "zerorun/engine.h"

namespace zerorun::testing {

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
  static std::vector<std::string> modules() { return {"embed", "h.0", "h.1", "expert", "head"}; }

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

  static float load(TensorView view, int64_t i) {
    switch (view.dtype) {
      case DType::bf16:
        return to_float(view.as<Bf16>()[i]);
      case DType::fp16:
        return to_float(view.as<Fp16>()[i]);
      default:
        return view.as<float>()[i];
    }
  }
  static void store(TensorView view, int64_t i, float value) {
    switch (view.dtype) {
      case DType::bf16:
        view.as<Bf16>()[i] = to_bf16(value);
        return;
      case DType::fp16:
        view.as<Fp16>()[i] = to_fp16(value);
        return;
      default:
        view.as<float>()[i] = value;
    }
  }

  // Gradient of one use of a parameter.
  static float gradient(float value, ParameterId id, int64_t element, int rank, int64_t micro,
                        int64_t step) {
    return noise(id, element, rank, micro, step) + std::round(value * 64.0F) / 512.0F;
  }

  // True if `rank` uses the module in this micro-step.
  using UsesFunction = std::function<bool(const std::string& module, int rank)>;

  // Forward over all modules, backward in reverse; gradients are multiplied by `scale`.
  static bool micro_step(
      Engine& engine, int rank, int64_t micro, int64_t step,
      const UsesFunction& uses = [](const std::string&, int) { return true; }, float scale = 1.0F) {
    const std::vector<std::string> order = modules();
    double checksum = 0;
    for (const std::string& module : order) {
      if (!uses(module, rank)) continue;
      engine.gather(engine.module_id(module));
      for (ParameterId id = 0; id < static_cast<ParameterId>(engine.parameters().size()); ++id) {
        if (engine.parameters()[static_cast<size_t>(id)].module != module) continue;
        for (int64_t i = 0; i < engine.numel(id); ++i) checksum += load(engine.parameter(id), i);
      }
      engine.release(engine.module_id(module));
    }
    for (size_t m = order.size(); m-- > 0;) {
      if (!uses(order[m], rank)) continue;
      engine.gather(engine.module_id(order[m]));
      backward_module(engine, order[m], rank, micro, step, scale);
      engine.release(engine.module_id(order[m]));
    }
    return std::isfinite(checksum) && engine.end_micro_step();
  }

 private:
  static void backward_module(Engine& engine, const std::string& module, int rank, int64_t micro,
                              int64_t step, float scale) {
    for (ParameterId id = 0; id < static_cast<ParameterId>(engine.parameters().size()); ++id) {
      const ParameterSpec& spec = engine.parameters()[static_cast<size_t>(id)];
      if (spec.module != module || !spec.trainable) continue;
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
