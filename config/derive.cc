#include "config/derive.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "config/conflicts.h"
#include "config/elasticity.h"
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

void apply_values(const GivenKeys& keys, Config& config) {
  for (const KeySpec* spec : key_table().keys()) {
    if (spec->binding.set == nullptr) continue;
    if (const JsonNode* value = given_value(keys, spec->pointer)) {
      spec->binding.set(config, *value);
    } else if (!spec->type_fallbacks.empty()) {
      set_type_default(*spec, type_for(keys, *spec).value_or(""), config);
    }
  }
}

// Gradients of what autocast computes in fp16 underflow as those of an fp16 model do. The loss
// scaler has the rules of torch.amp.GradScaler, which DeepSpeed 0.19 uses here.
void derive_autocast(const GivenKeys& keys, DType params, PrecisionConfig& precision) {
  const JsonNode* dtype = given_value(keys, "/torch_autocast/dtype");
  if (dtype == nullptr || !is_true(keys, "/torch_autocast/enabled")) return;
  if (params == DType::fp16 || parse_dtype(dtype->text) != DType::fp16) return;
  precision.scales_loss = true;
  precision.loss_scaler = {
      .window = 2000, .hysteresis = 1, .min_scale = std::numeric_limits<float>::min()};
}

// As in DeepSpeed 0.19, precision_config.py, these keys apply only to the dtype of their block.
void derive_precision(const GivenKeys& keys, PrecisionConfig& precision) {
  const DType dtype = model_dtype(keys);
  precision.master_is_param =
      (dtype == DType::bf16 && is_true(keys, "/bf16/bf16_master_weights_and_grads")) ||
      (dtype == DType::fp16 && is_true(keys, "/fp16/fp16_master_weights_and_grads"));
  if (dtype == DType::bf16 && is_true(keys, "/bf16/bf16_optimizer_states")) {
    precision.state_dtype = DType::bf16;
  }
  derive_autocast(keys, dtype, precision);
}

// DeepSpeed 0.19, engine.py, _muon_param_groups: muon_lr and adam_lr override lr.
void derive_muon(const GivenKeys& keys, OptimizerConfig& optimizer) {
  if (optimizer.type != "Muon") return;
  if (is_given(keys, "/optimizer/params/lr")) {
    if (!is_given(keys, "/optimizer/params/muon_lr")) optimizer.muon_lr = optimizer.lr;
    if (!is_given(keys, "/optimizer/params/adam_lr")) optimizer.adam_lr = optimizer.lr;
  }
  optimizer.lr = optimizer.muon_lr;  // initial lr of parameter groups
}

// torch_adam selects PyTorch's AdamW, which has another default of weight_decay than DeepSpeed's
// fused one.
void derive_torch_adam(const GivenKeys& keys, OptimizerConfig& optimizer) {
  constexpr float kTorchDecay = 0.01F;
  const bool is_adamw =
      optimizer.type == "AdamW" || (optimizer.type == "Adam" && optimizer.adam_w_mode);
  if (is_adamw && is_true(keys, "/optimizer/params/torch_adam") &&
      !is_given(keys, "/optimizer/params/weight_decay")) {
    optimizer.weight_decay = kTorchDecay;
  }
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

void derive_groups(const GivenKeys& keys, ZeroConfig& zero) {
  if (says_auto(keys, "/zero_optimization/zero_hpz_partition_size")) {
    zero.hpz_partition_size = kRanksOfHost;
  }
  const JsonNode* loco = given_value(keys, "/zero_optimization/zeropp_loco_param");
  // An empty block turns LoCo on with its defaults. (The output of `zerorun config show` has keys
  // that are null.)
  if (loco != nullptr && loco->children.empty() && zero.quantized_gradients) zero.loco.emplace();
  if (says_auto(keys, "/zerorun/shard_group_size")) zero.shard_group_size = kRanksOfHost;
}

void derive_scheduler(const GivenKeys& keys, float lr, SchedulerConfig& scheduler) {
  if (says_auto(keys, "/scheduler/params/warmup_num_steps")) {
    scheduler.warmup_num_steps = kAutoSteps;
  }
  // Same as Hugging Face's Trainer. The shortest decimal number is the one in the file.
  if (says_auto(keys, "/scheduler/params/warmup_max_lr")) {
    scheduler.warmup_max_lr = {std::stod(fmt::format("{}", lr))};
  }
}

// How to resolve "auto" for a key. Bucket sizes are those of transformers 5.23,
// integrations/deepspeed.py, trainer_config_finalize; if the model is unknown they have their
// default.
struct AutoRule {
  std::string_view pointer;
  std::optional<int64_t> (*value)(const RunFacts& facts);

  bool waits() const { return key_table().find(pointer)->auto_waits; }
};

std::optional<int64_t> known(int64_t value) {
  return value > 0 ? std::optional(value) : std::nullopt;
}

int64_t square(int64_t value) { return value * value; }

constexpr auto kRules = std::to_array<AutoRule>({
    {"/zero_optimization/reduce_bucket_size",
     [](const RunFacts& facts) { return known(square(facts.hidden_size)); }},
    {"/zero_optimization/stage3_prefetch_bucket_size",
     [](const RunFacts& facts) {
       return known(static_cast<int64_t>(0.9 * static_cast<double>(square(facts.hidden_size))));
     }},
    {"/zero_optimization/stage3_param_persistence_threshold",
     [](const RunFacts& facts) { return known(10 * facts.hidden_size); }},
    {"/scheduler/params/total_num_steps",
     [](const RunFacts& facts) { return known(facts.total_steps); }},
    {"/scheduler/params/warmup_num_steps",
     [](const RunFacts& facts) {
       return facts.warmup_steps ? known(std::max<int64_t>(*facts.warmup_steps, 1)) : std::nullopt;
     }},
});

void set_integer(ParsedConfig& parsed, ConfigValue& value, int64_t integer) {
  const KeySpec* spec = key_table().find(value.pointer);
  ZR_CHECK(spec != nullptr && spec->binding.set != nullptr, "{} cannot be set", value.pointer);
  spec->binding.set(parsed.config, JsonNode::of(integer));
  value.value = std::to_string(integer);
}

const ConfigValue* find_value(const ParsedConfig& parsed, std::string_view pointer) {
  const auto found = std::ranges::find(parsed.values, pointer, &ConfigValue::pointer);
  return found == parsed.values.end() ? nullptr : &*found;
}

JsonPosition place_of(const ConfigValue& value) { return {value.line, value.column}; }

// Returns the key that determines the batch sizes, with its position: elasticity, or the first
// given size.
std::pair<std::string, JsonPosition> batch_place(const ParsedConfig& parsed, bool is_elastic) {
  for (const ConfigValue& value : parsed.values) {
    const bool decides = is_elastic
                             ? value.pointer == "/elasticity/enabled"
                             : std::ranges::find(kBatchKeys, value.pointer) != kBatchKeys.end();
    if (value.line > 0 && decides) return {value.pointer, place_of(value)};
  }
  return {"/train_batch_size", {}};
}

void resolve_batch_sizes(ParsedConfig& parsed, int world_size) {
  BatchConfig& batch = parsed.config.batch;
  const bool is_elastic = elasticity_of(parsed).enabled;
  const bool is_given = batch.train_batch_size != 0 || batch.micro_batch_size != 0;
  if (world_size == 0 || !(is_given || is_elastic)) return;
  try {
    batch = batch_for(parsed, world_size);
  } catch (const ConfigError& error) {
    const auto [pointer, where] = batch_place(parsed, is_elastic);
    ConfigProblems problems(parsed.config.source);
    problems.add(pointer, where, "{}", error.what());
    problems.throw_if_any();
  }
  for (ConfigValue& value : parsed.values) {
    int64_t resolved = 0;
    if (value.pointer == kBatchKeys[0]) resolved = batch.train_batch_size;
    if (value.pointer == kBatchKeys[1]) resolved = batch.micro_batch_size;
    if (value.pointer == kBatchKeys[2]) resolved = batch.accumulation_steps;
    if (resolved != 0) value.value = std::to_string(resolved);
  }
}

template <typename Visit>
void for_each_auto(ParsedConfig& parsed, const Visit& visit) {
  for (ConfigValue& value : parsed.values) {
    if (!value.is_auto) continue;
    for (const AutoRule& rule : kRules) {
      if (rule.pointer == value.pointer) visit(value, rule);
    }
  }
}

}  // namespace

DType model_dtype(const GivenKeys& keys) {
  if (is_true(keys, "/fp16/enabled")) return DType::fp16;
  if (is_true(keys, "/bf16/enabled")) return DType::bf16;
  const JsonNode* dtype = given_value(keys, "/zerorun/train/dtype");
  return dtype == nullptr ? DType::fp32 : parse_dtype(dtype->text);
}

Config derive_config(const GivenKeys& keys) {
  Config config;
  apply_values(keys, config);
  if (!is_given(keys, "/zero_optimization/overlap_comm") && config.zero.stage == 3) {
    config.zero.overlap_comm = true;  // DeepSpeed 0.19, zero/config.py
  }
  derive_precision(keys, config.precision);
  derive_muon(keys, config.optimizer);
  derive_torch_adam(keys, config.optimizer);
  derive_offload(keys, config.offload);
  derive_groups(keys, config.zero);
  derive_scheduler(keys, config.optimizer.lr, config.scheduler);
  if (is_true(keys, "/elasticity/enabled")) config.batch = {};  // elasticity computes them
  return config;
}

void mark_unresolved(ParsedConfig& parsed) {
  for_each_auto(parsed, [](ConfigValue& value, const AutoRule& rule) {
    if (rule.waits()) value.value = R"("auto")";
  });
}

std::vector<const ConfigValue*> resolve_known(ParsedConfig& parsed, const RunFacts& given) {
  constexpr int64_t kMaxHiddenSize = int64_t{1} << 31;  // its square fits into 64 bits
  if (given.hidden_size < 0 || given.hidden_size > kMaxHiddenSize) {
    fail<ConfigError>("hidden size: got {}, expected 0 (not known) to {}", given.hidden_size,
                      kMaxHiddenSize);
  }
  RunFacts facts = given;
  const ConfigValue* steps = find_value(parsed, "/zerorun/train/steps");
  if (facts.total_steps == 0 && steps != nullptr && !steps->is_default) {
    facts.total_steps = std::stoll(steps->value);
  }
  std::vector<const ConfigValue*> unresolved;
  for_each_auto(parsed, [&](ConfigValue& value, const AutoRule& rule) {
    if (const std::optional<int64_t> integer = rule.value(facts)) {
      set_integer(parsed, value, *integer);
    } else if (rule.waits()) {
      unresolved.push_back(&value);
    }
  });
  resolve_batch_sizes(parsed, facts.world_size);
  return unresolved;
}

void resolve_auto(ParsedConfig& parsed, const RunFacts& facts) {
  ConfigProblems problems(parsed.config.source);
  for (const ConfigValue* value : resolve_known(parsed, facts)) {
    problems.add(value->pointer, place_of(*value),
                 R"(got "auto", which this program cannot resolve; give the number)");
  }
  for (const KeyProblem& problem : schedule_problems(parsed.config.scheduler)) {
    const ConfigValue* given = find_value(parsed, problem.pointer);
    problems.add(problem.pointer, given == nullptr ? JsonPosition{} : place_of(*given), "{}",
                 problem.text);
  }
  problems.throw_if_any();
}

}  // namespace zerorun
