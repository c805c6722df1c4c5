#include "config/derive.h"

#include <fmt/format.h>

#include <string>

#include "config/schedule_check.h"
#include "config/type_params.h"
#include "config/value_check.h"
#include "core/check.h"

namespace zerorun {

namespace {

bool is_true(const GivenKeys& keys, std::string_view pointer) {
  const JsonNode* value = given_value(keys, pointer);
  return value != nullptr && value->boolean;
}

bool is_given(const GivenKeys& keys, std::string_view pointer) {
  return given_value(keys, pointer) != nullptr;
}

void set_type_default(const KeySpec& spec, std::string_view type, Config& config) {
  if (spec.fallback_for(type) == spec.fallback) return;
  ConfigProblems problems("the key table");
  const std::optional<JsonNode> node = read_json(spec.fallback_for(type), problems);
  ZR_CHECK(node, "{} has no readable default for {}", spec.pointer, type);
  spec.binding.set(config, *node);
}

void apply_values(const KeyTable& table, const GivenKeys& keys, Config& config) {
  for (const KeySpec* spec : table.keys()) {
    if (spec->binding.set == nullptr) continue;
    if (const JsonNode* value = given_value(keys, spec->pointer)) {
      spec->binding.set(config, *value);
    } else if (!spec->type_fallbacks.empty()) {
      set_type_default(*spec, type_for(table, keys, *spec).value_or(""), config);
    }
  }
}

// DeepSpeed 0.19, precision_config.py: these keys concern the dtype of their block only.
void derive_precision(const GivenKeys& keys, PrecisionConfig& precision) {
  const DType dtype = model_dtype(keys);
  precision.master_is_param =
      (dtype == DType::bf16 && is_true(keys, "/bf16/bf16_master_weights_and_grads")) ||
      (dtype == DType::fp16 && is_true(keys, "/fp16/fp16_master_weights_and_grads"));
  if (dtype == DType::bf16 && is_true(keys, "/bf16/bf16_optimizer_states")) {
    precision.state_dtype = DType::bf16;
  }
}

// DeepSpeed 0.19, engine.py, _muon_param_groups: muon_lr and adam_lr override lr.
void derive_muon(const GivenKeys& keys, OptimizerConfig& optimizer) {
  if (optimizer.type != "Muon") return;
  if (is_given(keys, "/optimizer/params/lr")) {
    if (!is_given(keys, "/optimizer/params/muon_lr")) optimizer.muon_lr = optimizer.lr;
    if (!is_given(keys, "/optimizer/params/adam_lr")) optimizer.adam_lr = optimizer.lr;
  }
  optimizer.lr = optimizer.muon_lr;  // what parameter groups start from
}

// The older forms of offload_optimizer, offload_param and intra_op_parallelism.
void derive_offload(const GivenKeys& keys, OffloadConfig& offload) {
  if (is_true(keys, "/zero_optimization/cpu_offload"))
    offload.optimizer.device = OffloadDevice::cpu;
  if (is_true(keys, "/zero_optimization/cpu_offload_param")) {
    offload.param.device = OffloadDevice::cpu;
  }
  if (const JsonNode* threads = given_value(keys, "/aio/thread_count")) {
    offload.aio.threads = as_integer(*threads).value_or(1);
  }
}

bool says_auto(const GivenKeys& keys, std::string_view pointer) {
  const auto key = keys.find(pointer);
  return key != keys.end() && is_auto(*key->second.spec, *key->second.node);
}

void derive_scheduler(const GivenKeys& keys, float lr, SchedulerConfig& scheduler) {
  if (says_auto(keys, "/scheduler/params/warmup_num_steps")) {
    scheduler.warmup_num_steps = kAutoSteps;
  }
  // As Hugging Face's Trainer; the shortest decimal number, to be the one in the file.
  if (says_auto(keys, "/scheduler/params/warmup_max_lr")) {
    scheduler.warmup_max_lr = {std::stod(fmt::format("{}", lr))};
  }
}

}  // namespace

DType model_dtype(const GivenKeys& keys) {
  if (is_true(keys, "/fp16/enabled")) return DType::fp16;
  if (is_true(keys, "/bf16/enabled")) return DType::bf16;
  const JsonNode* dtype = given_value(keys, "/zerorun/train/dtype");
  return dtype == nullptr ? DType::fp32 : parse_dtype(dtype->text);
}

Config derive_config(const KeyTable& table, const GivenKeys& keys) {
  Config config;
  apply_values(table, keys, config);
  if (!is_given(keys, "/zero_optimization/overlap_comm")) {
    config.zero.overlap_comm = config.zero.stage == 3;  // DeepSpeed 0.19, zero/config.py
  }
  derive_precision(keys, config.precision);
  derive_muon(keys, config.optimizer);
  derive_offload(keys, config.offload);
  derive_scheduler(keys, config.optimizer.lr, config.scheduler);
  return config;
}

}  // namespace zerorun
