#include "optim/optimizer.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <string_view>

#include "core/check.h"

namespace zerorun {

namespace {

struct Type {
  std::string_view name;
  UpdateRule rule;
  std::array<std::string_view, 2> states;  // torch.optim's names
  bool in_8_bits = false;
};
constexpr std::array kTypes = {
    Type{"Adam", UpdateRule::adam, {"exp_avg", "exp_avg_sq"}},
    Type{"AdamW", UpdateRule::adam, {"exp_avg", "exp_avg_sq"}},
    Type{"Adam8bit", UpdateRule::adam, {"exp_avg", "exp_avg_sq"}, true},
    Type{"AdamW8bit", UpdateRule::adam, {"exp_avg", "exp_avg_sq"}, true},
    Type{"SGD", UpdateRule::sgd, {"momentum_buffer", ""}},
    Type{"Adagrad", UpdateRule::adagrad, {"sum", ""}},
    Type{"Lion", UpdateRule::lion, {"exp_avg", ""}},
    Type{"Lamb", UpdateRule::lamb_direction, {"exp_avg", "exp_avg_sq"}},
    Type{"Muon", UpdateRule::muon_direction, {"momentum_buffer", ""}},
};

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

const Type& find_type(const std::string& name) {
  const std::string wanted = lower_case(name);
  for (const Type& type : kTypes) {
    if (lower_case(std::string(type.name)) == wanted) return type;
  }
  fail<ConfigError>(
      "optimizer.type: got '{}', expected Adam, AdamW, Adam8bit, AdamW8bit, SGD, Adagrad, Lion, "
      "Lamb or Muon",
      name);
}

// As DeepSpeed (runtime/engine.py, _configure_basic_optimizer): "AdamW" is always decoupled, "Adam"
// unless adam_w_mode is false.
bool is_decoupled(const Type& type, const OptimizerConfig& config) {
  return type.rule == UpdateRule::adam && (type.name.starts_with("AdamW") || config.adam_w_mode);
}

// 1 - beta^step in double: in fp32 the difference would lose all digits at the first steps.
float bias_correction(bool enabled, double beta, int64_t step) {
  return enabled ? static_cast<float>(1.0 - std::pow(beta, static_cast<double>(step))) : 1.0F;
}

// Returns the learning rate of the parameters that AdamW updates, divided by that of Muon's
// matrices.
double rest_of_muon(const OptimizerConfig& config) {
  if (config.adam_lr == config.muon_lr) return 1.0;
  if (config.muon_lr == 0.0F) {
    fail<ConfigError>(
        "optimizer.params.muon_lr: got 0 beside adam_lr {}, expected more than 0: the rate of the "
        "rest follows that of the matrices",
        config.adam_lr);
  }
  return double{config.adam_lr} / double{config.muon_lr};
}

bool is_half(DType dtype) { return dtype == DType::bf16 || dtype == DType::fp16; }

}  // namespace

Optimizer::Optimizer(const OptimizerConfig& config, const PrecisionConfig& precision,
                     double lr_ratio)
    : config_(config), external_(config.type == kExternalOptimizer), lr_ratio_(lr_ratio) {
  if (external_) return;
  const Type& type = find_type(config.type);
  rule_ = type.rule;
  decoupled_ = is_decoupled(type, config);
  stochastic_ = is_half(precision.state_dtype) ||
                (precision.master_is_param && is_half(precision.param_dtype));
  if (type.in_8_bits && precision.state_dtype != DType::fp32) {
    fail<ConfigError>(
        "optimizer.type {} keeps its states in 8 bits, expected no other dtype, got {}",
        config.type, name_of(precision.state_dtype));
  }
  if (precision.state_dtype != DType::fp32 && !is_half(precision.state_dtype)) {
    fail<ConfigError>("dtype of the optimizer states: got {}, expected fp32, bf16 or fp16",
                      name_of(precision.state_dtype));
  }
  const std::string method = lower_case(config.ns_method);
  polar_express_ = method == "polar_express";
  if (!polar_express_ && method != "gram" && method != "standard") {
    fail<ConfigError>(
        "optimizer.params.ns_method: got '{}', expected gram, standard or polar_express",
        config.ns_method);
  }
  if (type.in_8_bits) block_ = kStateBlock;
  if (config.min_coeff > config.max_coeff) {
    fail<ConfigError>("optimizer.params.min_coeff: got {}, expected at most max_coeff, which is {}",
                      config.min_coeff, config.max_coeff);
  }
  if (rule_ == UpdateRule::sgd && config.momentum == 0.0) return;
  for (const std::string_view state : type.states) {
    if (state.empty()) continue;
    const std::string name(state);
    states_.push_back({name, type.in_8_bits ? DType::uint8 : precision.state_dtype});
    if (type.in_8_bits) states_.push_back({name + "_scale", DType::fp32, kStateBlock});
  }
}

Optimizer::Passes Optimizer::passes() const {
  if (rule_ == UpdateRule::lamb_direction) return Passes::lamb;
  if (rule_ == UpdateRule::muon_direction) return Passes::muon;
  return Passes::one;
}

UpdateScalars Optimizer::scalars(int64_t step, float grad_scale,
                                 const ParameterGroup& group) const {
  ZR_CHECK(!external_, "Engine::step() without an update, but the optimizer is the caller's");
  ZR_CHECK(step >= 1, "got step {}, expected 1 or more", step);
  const bool has_momentum = rule_ == UpdateRule::sgd || rule_ == UpdateRule::muon_direction;
  UpdateScalars s = {
      .rule = rule_,
      .lr = static_cast<float>(lr_ratio_ * group.lr),
      .beta1 = group.beta1.value_or(has_momentum ? config_.momentum : config_.beta1),
      .beta2 = group.beta2.value_or(config_.beta2),
      .eps = group.eps.value_or(config_.eps),
      .weight_decay = group.weight_decay,
      .decoupled = decoupled_,
      .grad_scale = grad_scale,
      .dampening = config_.dampening,
      .nesterov = config_.nesterov,
      .eps_inside_sqrt = config_.eps_inside_sqrt,
      .step = step,
  };
  s.bias_correction1 = bias_correction(config_.bias_correction, s.beta1, step);
  s.bias_correction2 = bias_correction(config_.bias_correction, s.beta2, step);
  if (rule_ == UpdateRule::adagrad) {
    s.lr = static_cast<float>(group.lr / (1.0 + static_cast<double>(step - 1) * config_.lr_decay));
  }
  return s;
}

UpdateScalars Optimizer::lamb_scalars(int64_t step, const ParameterGroup& group) const {
  UpdateScalars s = scalars(step, 1.0F, group);
  s.rule = UpdateRule::lamb;
  s.lr = static_cast<float>(group.lr * std::sqrt(static_cast<double>(s.bias_correction2)) /
                            s.bias_correction1);
  return s;
}

UpdateScalars Optimizer::muon_scalars(int64_t step, const ParameterGroup& group, int64_t rows,
                                      int64_t cols) const {
  UpdateScalars s = scalars(step, 1.0F, group);
  s.rule = UpdateRule::sgd;
  s.decoupled = true;
  // Jordan's scale, which keeps the size of the update per output feature; same as in DeepSpeed and
  // torch.optim.Muon ("original").
  s.grad_scale = static_cast<float>(
      std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(cols))));
  return s;
}

std::string rule_name(const OptimizerConfig& config) {
  const Type& type = find_type(config.type);
  if (type.rule != UpdateRule::adam) return std::string(type.name);
  const std::string_view bits = type.in_8_bits ? "8bit" : "";
  if (is_decoupled(type, config)) return fmt::format("AdamW{}", bits);
  return fmt::format("Adam{} with adam_w_mode false", bits);
}

std::vector<Optimizer> make_optimizers(const OptimizerConfig& config,
                                       const PrecisionConfig& precision) {
  if (lower_case(config.type) != "muon") return {Optimizer(config, precision)};
  OptimizerConfig rest = config;
  rest.type = "Adam";  // decoupled unless adam_w_mode is false
  return {Optimizer(rest, precision, rest_of_muon(config)), Optimizer(config, precision)};
}

}  // namespace zerorun
