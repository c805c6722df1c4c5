#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "train/model/gpt_config.h"
#include "zerorun/engine.h"
#include "zerorun/timeline.h"

// The parameters of a GPT-2 with Hugging Face's names, their initial values, and the model's access
// to them.
namespace zerorun::train {

// Modules are "embeddings" (of tokens, which the head also uses, and of positions), "h.0", ...,
// "ln_f". Matrices are in group 0, with weight decay; vectors are in group 1, without.
std::vector<ParameterSpec> parameter_specs(const GptConfig& config);
std::vector<ParameterGroup> parameter_groups(float lr, float weight_decay);

// Computes the initial values of GPT-2: matrices are N(0, 0.02^2), projections onto the residual
// stream have a standard deviation that is smaller by sqrt(2 * layers), gains are 1, biases 0.
// Elements from `begin` on are written to `out`.
class Initializer {
 public:
  Initializer(const GptConfig& config, uint64_t seed);
  void fill(ParameterId id, int64_t begin, std::span<float> out) const;

 private:
  struct Rule {
    float constant = 0.0F;
    float deviation = 0.0F;
  };
  uint64_t seed_;
  std::vector<Rule> rules_;
};

// The functions of an engine that its model uses; engine.h has the contracts.
class ParameterAccess {
 public:
  virtual ~ParameterAccess() = default;
  virtual ParameterId parameter_id(std::string_view name) const = 0;
  virtual ModuleId module_id(std::string_view name) const = 0;
  virtual void gather(ModuleId module) = 0;
  virtual void release(ModuleId module) = 0;
  virtual TensorView parameter(ParameterId id) const = 0;
  virtual GradientView gradient(ParameterId id) = 0;
  virtual void grad_ready(ParameterId id) = 0;
};

// Keeps a module's parameters gathered during its lifetime.
class Gathered {
 public:
  Gathered(ParameterAccess& parameters, ModuleId module)
      : parameters_(parameters), module_(module) {
    parameters_.gather(module_);
  }
  ~Gathered() { parameters_.release(module_); }
  Gathered(const Gathered&) = delete;
  Gathered& operator=(const Gathered&) = delete;

 private:
  ParameterAccess& parameters_;
  ModuleId module_;
};

// Those of an engine. With a timeline, adds spans for the time that the model works on each module,
// from its gather to its release. On a GPU these are the times at which the host submits the work.
class EngineParameters final : public ParameterAccess {
 public:
  explicit EngineParameters(Engine& engine) : engine_(engine) {}
  // Null for none. Must not be called between gather and release.
  void use_timeline(Timeline* timeline) { timeline_ = timeline; }

  ParameterId parameter_id(std::string_view name) const override {
    return engine_.parameter_id(name);
  }
  ModuleId module_id(std::string_view name) const override { return engine_.module_id(name); }
  void gather(ModuleId module) override;
  void release(ModuleId module) override;
  TensorView parameter(ParameterId id) const override { return engine_.parameter(id); }
  GradientView gradient(ParameterId id) override;
  void grad_ready(ParameterId id) override { engine_.grad_ready(id); }

 private:
  struct Span {
    double begin_s = 0;
    bool backward = false;  // backward has requested gradients
  };
  Engine& engine_;
  Timeline* timeline_ = nullptr;
  std::vector<Span> begun_;  // nested
};

}  // namespace zerorun::train
