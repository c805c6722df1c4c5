#include "config/conflicts.h"

#include <cmath>
#include <utility>

#include "config/derive.h"
#include "config/elasticity.h"

namespace zerorun {

namespace {

constexpr std::string_view kBf16 = "/bf16/enabled";
constexpr std::string_view kFp16 = "/fp16/enabled";

// Reports that a value contradicts that of another key.
void add_contradiction(std::string_view pointer, const JsonNode& node, std::string_view other,
                       const JsonNode& other_node, ConfigProblems& problems) {
  problems.add(pointer, node.where, "{} contradicts {} {} at {}:{}; remove one of them",
               to_text(node), other, to_text(other_node), other_node.where.line,
               other_node.where.column);
}

void check_precision(const GivenKeys& keys, ConfigProblems& problems) {
  const JsonNode* bf16 = given_value(keys, kBf16);
  const JsonNode* fp16 = given_value(keys, kFp16);
  if (bf16 != nullptr && fp16 != nullptr && bf16->boolean && fp16->boolean) {
    problems.add(kFp16, fp16->where, "true contradicts {} at {}:{}, also true; enable one of them",
                 kBf16, bf16->where.line, bf16->where.column);
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
  const auto check = [&](std::string_view block, OffloadDevice device,
                         const std::optional<std::string>& path, int least_stage) {
    const std::string pointer = fmt::format("/zero_optimization/{}/device", block);
    const auto given = keys.find(pointer);
    // The older form of the key has no block; the engine checks the stage in that case.
    if (device == OffloadDevice::none || given == keys.end()) return;
    const auto& where = given->second.node->where;
    if (config.zero.stage < least_stage) {
      problems.add(pointer, where,
                   "{} needs /zero_optimization/stage {}, got {} (programs that import deepspeed "
                   "ignore it, with a warning)",
                   to_text(*given->second.node), least_stage == 3 ? "3" : "1, 2 or 3",
                   config.zero.stage);
    }
    if (device == OffloadDevice::nvme && path.value_or("").empty()) {
      problems.add(pointer, where,
                   "\"nvme\" needs /zero_optimization/{}/nvme_path, a folder on a local disk",
                   block);
    }
  };
  const OffloadConfig& offload = config.offload;
  check("offload_optimizer", offload.optimizer.device, offload.optimizer.nvme_path, 1);
  check("offload_param", offload.param.device, offload.param.nvme_path, 3);
  constexpr std::string_view kBlock = "/aio/block_size";
  const JsonNode* block = given_value(keys, kBlock);
  if (block != nullptr && offload.aio.block_size % 4096 != 0) {
    problems.add(kBlock, block->where, "got {}, expected a multiple of 4096", to_text(*block));
  }
}

void check_groups(const GivenKeys& keys, int stage, ConfigProblems& problems) {
  constexpr std::string_view kSize = "/zerorun/shard_group_size";
  constexpr std::string_view kMics = "/zero_optimization/mics_shard_size";
  const JsonNode* size = given_value(keys, kSize);
  const JsonNode* mics = given_value(keys, kMics);
  const auto asks = [](const JsonNode* node) { return node != nullptr && node->number > 0; };
  if (asks(size) && asks(mics) && size->number != mics->number) {
    add_contradiction(kMics, *mics, kSize, *size, problems);
  }
  for (const auto& [pointer, node] : {std::pair(kSize, size), std::pair(kMics, mics)}) {
    if (stage != 0 || !asks(node)) continue;
    problems.add(pointer, node->where,
                 "{} needs /zero_optimization/stage 1, 2 or 3, got 0, which shards nothing",
                 to_text(*node));
  }
  constexpr std::string_view kSecondary = "/zero_optimization/zero_hpz_partition_size";
  const JsonNode* secondary = given_value(keys, kSecondary);
  if (secondary != nullptr && secondary->number > 1 && stage != 3) {
    problems.add(kSecondary, secondary->where,
                 "{} needs /zero_optimization/stage 3, got {}, which does not shard parameters",
                 to_text(*secondary), stage);
  }
  for (const auto& [pointer, node] : {std::pair(kSize, size), std::pair(kMics, mics)}) {
    if (secondary == nullptr || secondary->number <= 1 || !asks(node)) continue;
    if (std::fmod(node->number, secondary->number) == 0) continue;
    problems.add(kSecondary, secondary->where,
                 "got {}, expected a number that divides the ranks of a shard group, {} {}",
                 to_text(*secondary), pointer, to_text(*node));
  }
}

void check_quantized(const GivenKeys& keys, const ZeroConfig& zero, ConfigProblems& problems) {
  const auto needs = [&](std::string_view name, bool met, std::string_view what) {
    const std::string pointer = fmt::format("/zero_optimization/{}", name);
    const JsonNode* node = given_value(keys, pointer);
    if (met || node == nullptr || (node->kind == JsonNode::Kind::boolean && !node->boolean)) return;
    problems.add(pointer, node->where, "{} needs /zero_optimization/{}", to_short_text(*node),
                 what);
  };
  constexpr std::string_view kBits = "/zerorun/quantized_gradient_bits";
  const JsonNode* bits = given_value(keys, kBits);
  if (bits != nullptr && bits->number != 4 && bits->number != 8) {
    problems.add(kBits, bits->where, "got {}, expected 4 or 8", to_text(*bits));
  }
  for (const char* key : {"zero_quantized_weights", "zero_quantized_gradients"}) {
    needs(key, zero.stage > 0, "stage 1, 2 or 3, got 0");
  }
  needs("zero_quantized_nontrainable_weights", zero.stage == 3,
        fmt::format("stage 3, got {}, at which frozen parameters are not sent", zero.stage));
  for (const char* key : {"zeropp_loco_param/err_beta", "zeropp_loco_param/reset_T"}) {
    needs(key, zero.quantized_gradients, "zero_quantized_gradients to be true");
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
  if (config.type.starts_with("Warmup") && warmup < 1) {
    problems.push_back(
        {kWarmupSteps,
         fmt::format("got {}, expected an integer of at least 1 for {}", warmup, config.type)});
  }
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

void check_conflicts(const GivenKeys& keys, const Config& config, ConfigProblems& problems) {
  check_precision(keys, problems);
  check_dtypes(keys, problems);
  check_nesterov(keys, config.optimizer, problems);
  check_lamb(keys, config.optimizer, problems);
  check_muon(keys, config.optimizer, problems);
  check_loss_scale(keys, config.precision.loss_scaler, problems);
  check_offload(keys, config, problems);
  check_groups(keys, config.zero.stage, problems);
  check_quantized(keys, config.zero, problems);
  check_schedule(keys, config.scheduler, problems);
  check_micro_batch(keys, problems);
  check_elasticity(keys, problems);
}

}  // namespace zerorun
