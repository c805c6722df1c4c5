#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "zerorun/config.h"
#include "zerorun/device.h"
#include "zerorun/engine.h"

namespace zerorun {

// An update rule: which states it keeps per element, and how the scalars of a step follow from
// configuration, parameter group and step. It holds no state of its own: the states live in a
// StateStore, so they can be sharded, offloaded and saved without the rule knowing.
class Optimizer {
 public:
  // How a step goes over the parameters: in one pass, or with something to do between two.
  enum class Passes : uint8_t { one, lamb, muon };

  // Throws ConfigError naming the types that exist, or settings that contradict each other.
  Optimizer(const OptimizerConfig& config, const PrecisionConfig& precision, double lr_ratio = 1.0);

  // Engine::step takes the caller's update (kExternalOptimizer).
  bool is_external() const { return external_; }
  Passes passes() const;
  std::span<const StateSpec> states() const { return states_; }
  // Parameters must begin at multiples of this within a shard.
  int64_t alignment() const { return block_ > 1 ? block_ : 1; }
  // Master or states are rounded stochastically: updates must name parameter and element.
  bool rounds_stochastically() const { return stochastic_; }

  // Scalars of the first pass. `step` counts from 1; `grad_scale` multiplies the gradient.
  UpdateScalars scalars(int64_t step, float grad_scale, const ParameterGroup& group) const;
  // Scalars of Lamb's second pass, for a parameter and a direction of these L2 norms.
  UpdateScalars lamb_scalars(int64_t step, const ParameterGroup& group, double parameter_norm,
                             double direction_norm) const;
  // Scalars of Muon's second pass, which takes the orthogonalized direction for the gradient.
  UpdateScalars muon_scalars(int64_t step, const ParameterGroup& group, int64_t rows,
                             int64_t cols) const;
  int newton_schulz_steps() const { return config_.ns_steps; }

 private:
  OptimizerConfig config_;
  bool external_ = false;
  UpdateRule rule_ = UpdateRule::adam;
  // Multiplies a group's lr, which is meant for Muon, where AdamW updates the parameters beside it.
  double lr_ratio_ = 1.0;
  bool decoupled_ = false;
  bool stochastic_ = false;
  int64_t block_ = 1;
  std::vector<StateSpec> states_;
};

// The name of the formula that a type and its settings ask for: states of one are of no use to
// another. Adam and AdamW are the same but for adam_w_mode false.
std::string rule_name(const OptimizerConfig& config);

// By ParameterSpec::use_muon: what updates parameters without it and, when the type is Muon, with
// it.
std::vector<Optimizer> make_optimizers(const OptimizerConfig& config,
                                       const PrecisionConfig& precision);

}  // namespace zerorun
