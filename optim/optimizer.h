#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "zerorun/config.h"
#include "zerorun/device.h"
#include "zerorun/engine.h"

namespace zerorun {

// An update rule: describes the states per element and computes the scalars of a step from
// configuration, parameter group and step number. The states themselves are in a StateStore, so
// that sharding, offloading and saving are independent of the rule.
class Optimizer {
 public:
  // Whether a step is one pass over the parameters, or two passes with other work in between.
  enum class Passes : uint8_t { one, lamb, muon };

  // Throws ConfigError that lists the existing types, or names settings that contradict each other.
  Optimizer(const OptimizerConfig& config, const PrecisionConfig& precision, double lr_ratio = 1.0);

  // True if the caller of Engine::step provides the update (kExternalOptimizer).
  bool is_external() const { return external_; }
  Passes passes() const;
  std::span<const StateSpec> states() const { return states_; }
  // Parameters must begin at multiples of this number of elements within a shard.
  int64_t alignment() const { return block_ > 1 ? block_ : 1; }
  // True if master or states are rounded stochastically, so that updates must specify parameter and
  // element.
  bool rounds_stochastically() const { return stochastic_; }

  // Returns the scalars of the first pass. `step` counts from 1; `grad_scale` is the factor of the
  // gradient.
  UpdateScalars scalars(int64_t step, float grad_scale, const ParameterGroup& group) const;
  // Returns the scalars of Lamb's second pass, in which UpdateTensors::trust_ratios are factors of
  // lr.
  UpdateScalars lamb_scalars(int64_t step, const ParameterGroup& group) const;
  TrustRatioLimits trust_ratio_limits() const { return {config_.min_coeff, config_.max_coeff}; }
  // Returns the scalars of Muon's second pass, in which the orthogonalized direction replaces the
  // gradient.
  UpdateScalars muon_scalars(int64_t step, const ParameterGroup& group, int64_t rows,
                             int64_t cols) const;
  Orthogonalization orthogonalization() const { return {config_.ns_steps, polar_express_}; }

 private:
  OptimizerConfig config_;
  bool external_ = false;
  UpdateRule rule_ = UpdateRule::adam;
  // factor of a group's lr, for the AdamW that updates the parameters that Muon does not
  double lr_ratio_ = 1.0;
  bool decoupled_ = false;
  bool polar_express_ = false;
  bool stochastic_ = false;
  int64_t block_ = 1;
  std::vector<StateSpec> states_;
};

// Returns the name of the formula that a type and its settings select. States of one formula cannot
// be used with another. Adam and AdamW have the same formula unless adam_w_mode is false.
std::string rule_name(const OptimizerConfig& config);

// Returns the optimizers, indexed by ParameterSpec::use_muon: the one for parameters without it
// and, if the type is Muon, the one for parameters with it.
std::vector<Optimizer> make_optimizers(const OptimizerConfig& config,
                                       const PrecisionConfig& precision);

}  // namespace zerorun
