#include "config/conflicts.h"

#include <cmath>
#include <utility>

#include "config/derive.h"
#include "config/elasticity.h"

namespace zerorun {

namespace {

constexpr std::string_view kBf16 = "/bf16/enabled";
constexpr std::string_view kFp16 = "/fp16/enabled";
constexpr std::string_view kOffloadOptimizer = "/zero_optimization/offload_optimizer/device";
constexpr std::string_view kOffloadParam = "/zero_optimization/offload_param/device";
constexpr std::string_view kSize = "/zerorun/shard_group_size";
constexpr std::string_view kMics = "/zero_optimization/mics_shard_size";
constexpr std::string_view kErrBeta = "/zero_optimization/zeropp_loco_param/err_beta";
constexpr std::string_view kResetT = "/zero_optimization/zeropp_loco_param/reset_T";
constexpr std::string_view kSecondary = "/zero_optimization/zero_hpz_partition_size";

// Reports that a value contradicts that of another key.
void add_contradiction(std::string_view pointer, const JsonNode& node, std::string_view other,
                       const JsonNode& other_node, ConfigProblems& problems) {
  problems.add(pointer, node.where, "{} contradicts {} {} at {}; remove one of them", to_text(node),
               other, to_text(other_node), to_text(other_node.where));
}

void check_precision(const GivenKeys& keys, ConfigProblems& problems) {
  const JsonNode* bf16 = given_value(keys, kBf16);
  const JsonNode* fp16 = given_value(keys, kFp16);
  if (bf16 != nullptr && fp16 != nullptr && bf16->boolean && fp16->boolean) {
    problems.add(kFp16, fp16->where, "true contradicts {} at {}, also true; enable one of them",
                 kBf16, to_text(bf16->where));
  }
  constexpr std::string_view kStates = "/bf16/bf16_optimizer_states";
  constexpr std::string_view kMaster = "/bf16/bf16_master_weights_and_grads";
  const JsonNode* states = given_value(keys, kStates);
  const JsonNode* master = given_value(keys, kMaster);
  if (states != nullptr && states->boolean && (master == nullptr || !master->boolean)) {
    problems.add(kStates, states->where, "true needs {} to be true too", kMaster);
  }
}

void check_dtypes(const GivenKeys& keys, ConfigProblems& problems) {
  constexpr std::string_view kTrainDtype = "/zerorun/train/dtype";
  if (const JsonNode* dtype = given_value(keys, kTrainDtype)) {
    for (const auto& [pointer, name] : {std::pair(kBf16, "bf16"), std::pair(kFp16, "fp16")}) {
      const JsonNode* enabled = given_value(keys, pointer);
      if (enabled == nullptr || enabled->boolean == (dtype->text == name)) continue;
      add_contradiction(kTrainDtype, *dtype, pointer, *enabled, problems);
    }
  }
  constexpr std::string_view kParamDtype = "/data_types/param_dtype";
  const JsonNode* param = given_value(keys, kParamDtype);
  const DType model = model_dtype(keys);
  if (param != nullptr && parse_dtype(param->text) != model) {
    problems.add(kParamDtype, param->where,
                 "\"{}\" contradicts {} and {}, which make parameters {}; remove this key",
                 param->text, kBf16, kFp16, name_of(model));
  }
}

// torch.optim.SGD rejects the same combination.
void check_nesterov(const GivenKeys& keys, const OptimizerConfig& optimizer,
                    ConfigProblems& problems) {
  constexpr std::string_view kNesterov = "/optimizer/params/nesterov";
  const JsonNode* nesterov = given_value(keys, kNesterov);
  if (optimizer.type != "SGD" || nesterov == nullptr || !nesterov->boolean) return;
  if (optimizer.momentum > 0 && optimizer.dampening == 0) return;
  problems.add(kNesterov, nesterov->where,
               "true needs momentum above 0 and no dampening, got momentum {} and dampening {}",
               optimizer.momentum, optimizer.dampening);
}

void check_loss_scale(const GivenKeys& keys, const LossScalerOptions& scaler,
                      ConfigProblems& problems) {
  constexpr std::string_view kMin = "/fp16/min_loss_scale";
  const JsonNode* least = given_value(keys, kMin);
  if (least == nullptr || scaler.static_scale > 0) return;
  const JsonNode* fp16 = given_value(keys, kFp16);
  if (least->number == 0 && fp16 != nullptr && fp16->boolean) {  // as in DeepSpeed, only then
    problems.add(kMin, least->where, "got 0, expected a number above 0");
  }
  const double first = std::ldexp(1.0, scaler.initial_scale_power);
  if (scaler.min_scale <= first) return;
  problems.add(
      kMin, least->where,
      "got {}, expected at most 2^{} = {:g}, the initial scale that /fp16/initial_scale_power sets",
      scaler.min_scale, scaler.initial_scale_power, first);
}

// The limits of the trust ratio; either may be the default.
void check_lamb(const GivenKeys& keys, const OptimizerConfig& optimizer, ConfigProblems& problems) {
  constexpr std::string_view kMin = "/optimizer/params/min_coeff";
  constexpr std::string_view kMax = "/optimizer/params/max_coeff";
  if (optimizer.type != "Lamb" || optimizer.min_coeff <= optimizer.max_coeff) return;
  if (const JsonNode* least = given_value(keys, kMin)) {
    problems.add(kMin, least->where, "got {}, expected at most {}, which is {}",
                 optimizer.min_coeff, kMax, optimizer.max_coeff);
  } else if (const JsonNode* most = given_value(keys, kMax)) {
    problems.add(kMax, most->where, "got {}, expected at least {}, which is {}",
                 optimizer.max_coeff, kMin, optimizer.min_coeff);
  }
}

void check_muon(const GivenKeys& keys, const OptimizerConfig& optimizer, ConfigProblems& problems) {
  constexpr std::string_view kHeads = "/optimizer/params/muon_heads";
  const JsonNode* given = given_value(keys, kHeads);
  if (given == nullptr) return;
  for (size_t i = 0; i < optimizer.muon_heads.size(); ++i) {
    const auto& [pattern, heads] = optimizer.muon_heads[i];
    if (heads > 0) continue;
    problems.add(kHeads, given->children[i].where,
                 "'{}': got {}, expected an integer of at least 1", pattern,
                 to_short_text(given->children[i]));
  }
}

void check_offload(const GivenKeys& keys, const Config& config, ConfigProblems& problems) {
  const auto check = [&](std::string_view pointer, OffloadDevice device,
                         const std::optional<std::string>& path) {
    const JsonNode* given = given_value(keys, pointer);
    if (given == nullptr || device != OffloadDevice::nvme || !path.value_or("").empty()) return;
    problems.add(pointer, given->where, "\"nvme\" needs {}/nvme_path, a folder on a local disk",
                 pointer.substr(0, pointer.rfind('/')));
  };
  const OffloadConfig& offload = config.offload;
  check(kOffloadOptimizer, offload.optimizer.device, offload.optimizer.nvme_path);
  check(kOffloadParam, offload.param.device, offload.param.nvme_path);
  constexpr std::string_view kBlock = "/aio/block_size";
  const JsonNode* block = given_value(keys, kBlock);
  if (block != nullptr && offload.aio.block_size % 4096 != 0) {
    problems.add(kBlock, block->where, "got {}, expected a multiple of 4096", to_text(*block));
  }
}

void check_groups(const GivenKeys& keys, ConfigProblems& problems) {
  const JsonNode* size = given_value(keys, kSize);
  const JsonNode* mics = given_value(keys, kMics);
  const auto asks = [](const JsonNode* node) { return node != nullptr && node->number > 0; };
  if (asks(size) && asks(mics) && size->number != mics->number) {
    add_contradiction(kMics, *mics, kSize, *size, problems);
  }
  const auto key = keys.find(kSize);
  if (asks(mics) && key != keys.end() && is_auto(*key->second.spec, *key->second.node)) {
    add_contradiction(kMics, *mics, kSize, *key->second.node, problems);
  }
  const JsonNode* secondary = given_value(keys, kSecondary);
  for (const auto& [pointer, node] : {std::pair(kSize, size), std::pair(kMics, mics)}) {
    if (secondary == nullptr || secondary->number <= 1 || !asks(node)) continue;
    if (std::fmod(node->number, secondary->number) == 0) continue;
    problems.add(kSecondary, secondary->where,
                 "got {}, expected a number that divides the ranks of a shard group, {} {}",
                 to_text(*secondary), pointer, to_text(*node));
  }
}

void check_quantized_bits(const GivenKeys& keys, ConfigProblems& problems) {
  constexpr std::string_view kBits = "/zerorun/quantized_gradient_bits";
  const JsonNode* bits = given_value(keys, kBits);
  if (bits != nullptr && bits->number != 4 && bits->number != 8) {
    problems.add(kBits, bits->where, "got {}, expected 4 or 8", to_text(*bits));
  }
}

// The older forms of keys have other names; the engine checks the stage in their case.
void check_stage(const GivenKeys& keys, const Config& config, ConfigProblems& problems) {
  if (is_invalid(keys, "/zero_optimization/stage")) return;
  for (const KeyProblem& problem : stage_problems(config)) {
    const JsonNode* given = given_value(keys, problem.pointer);
    if (given == nullptr) continue;
    if (given->is_number() && given->number <= 0) continue;  // it asks for nothing
    problems.add(problem.pointer, given->where, "{} {}", to_short_text(*given), problem.text);
  }
}

void check_schedule(const GivenKeys& keys, const SchedulerConfig& scheduler,
                    ConfigProblems& problems) {
  for (const KeyProblem& problem : schedule_problems(scheduler)) {
    auto key = keys.find(problem.pointer);
    if (key == keys.end()) key = keys.find("/scheduler/type");  // a default contradicts
    problems.add(problem.pointer, key->second.node->where, "{}", problem.text);
  }
}

void check_micro_batch(const GivenKeys& keys, ConfigProblems& problems) {
  constexpr std::string_view kOption = "/zerorun/train/micro_batch";
  constexpr std::string_view kKey = "/train_micro_batch_size_per_gpu";
  const JsonNode* option = given_value(keys, kOption);
  const JsonNode* key = given_value(keys, kKey);
  if (option != nullptr && key != nullptr && as_integer(*option) != as_integer(*key)) {
    add_contradiction(kOption, *option, kKey, *key, problems);
  }
}

}  // namespace

ScheduleLengths lengths_of(std::string_view type) {
  const bool has_total = type == "WarmupDecayLR" || type == "WarmupCosineLR" || type == "cosine" ||
                         type == "linear" || type == "WSD";
  return {.warmup = has_total || type == "WarmupLR" || type == "constant", .total = has_total};
}

std::vector<KeyProblem> schedule_problems(const SchedulerConfig& config) {
  constexpr std::string_view kWarmupSteps = "/scheduler/params/warmup_num_steps";
  constexpr std::string_view kDecay = "/scheduler/params/decay_num_steps";
  std::vector<KeyProblem> problems;
  const int64_t warmup = config.warmup_num_steps;
  const int64_t total = config.total_num_steps;
  const int64_t decay = config.type == "WSD" ? config.decay_num_steps : 0;
  if (!lengths_of(config.type).warmup || warmup == kAutoSteps) return problems;
  if (!lengths_of(config.type).total || total == 0) return problems;
  if (warmup > total) {
    problems.push_back(
        {kWarmupSteps, fmt::format("got {} steps of warm-up, expected at most total_num_steps, {}",
                                   warmup, total)});
  } else if (decay > total - warmup) {
    problems.push_back(
        {kDecay, fmt::format("got {} steps of decay, expected at most total_num_steps - "
                             "warmup_num_steps, {} - {}",
                             decay, total, warmup)});
  }
  return problems;
}

std::vector<KeyProblem> stage_problems(const Config& config) {
  const ZeroConfig& zero = config.zero;
  std::vector<KeyProblem> problems;
  const auto needs = [&](std::string_view pointer, bool asked, int stage, std::string_view why) {
    if (!asked || zero.stage >= stage) return;
    problems.push_back({pointer, fmt::format("needs /zero_optimization/stage {}, got {}{}",
                                             stage == 3 ? "3" : "1, 2 or 3", zero.stage, why)});
  };
  constexpr const char* kIgnored = " (programs that import deepspeed ignore it, with a warning)";
  needs(kOffloadOptimizer, config.offload.optimizer.device != OffloadDevice::none, 1, kIgnored);
  needs(kOffloadParam, config.offload.param.device != OffloadDevice::none, 3, kIgnored);
  for (const std::string_view pointer : {kSize, kMics}) {
    needs(pointer, zero.shard_group_size > 0, 1, ", which shards nothing");
  }
  needs(kSecondary, zero.hpz_partition_size > 1, 3, ", which does not shard parameters");
  needs("/zero_optimization/zero_quantized_weights", zero.quantized_weights, 1, "");
  needs("/zero_optimization/zero_quantized_gradients", zero.quantized_gradients, 1, "");
  needs("/zero_optimization/zero_quantized_nontrainable_weights",
        zero.quantized_nontrainable_weights, 3, ", at which frozen parameters are not sent");
  for (const std::string_view pointer : {kErrBeta, kResetT}) {
    if (!zero.loco || zero.quantized_gradients) continue;
    problems.push_back({pointer, "needs /zero_optimization/zero_quantized_gradients to be true"});
  }
  return problems;
}

void check_conflicts(const GivenKeys& keys, const Config& config, ConfigProblems& problems) {
  check_precision(keys, problems);
  check_dtypes(keys, problems);
  check_nesterov(keys, config.optimizer, problems);
  check_lamb(keys, config.optimizer, problems);
  check_muon(keys, config.optimizer, problems);
  check_loss_scale(keys, config.precision.loss_scaler, problems);
  check_offload(keys, config, problems);
  check_groups(keys, problems);
  check_stage(keys, config, problems);
  check_quantized_bits(keys, problems);
  check_schedule(keys, config.scheduler, problems);
  check_micro_batch(keys, problems);
  check_elasticity(keys, problems);
}

}  // namespace zerorun
