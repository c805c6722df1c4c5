#include "config/schedule_check.h"

#include <fmt/format.h>

namespace zerorun {

namespace {

constexpr std::string_view kWarmupSteps = "/scheduler/params/warmup_num_steps";
constexpr std::string_view kDecay = "/scheduler/params/decay_num_steps";

bool is_deepspeed_warmup(std::string_view type) { return type.starts_with("Warmup"); }

}  // namespace

ScheduleLengths lengths_of(std::string_view type) {
  const bool has_total = type == "WarmupDecayLR" || type == "WarmupCosineLR" || type == "cosine" ||
                         type == "linear" || type == "WSD";
  return {.warmup = has_total || type == "WarmupLR" || type == "constant", .total = has_total};
}

std::vector<KeyProblem> schedule_problems(const SchedulerConfig& config) {
  std::vector<KeyProblem> problems;
  const int64_t warmup = config.warmup_num_steps;
  const int64_t total = config.total_num_steps;
  const int64_t decay = config.type == "WSD" ? config.decay_num_steps : 0;
  if (!lengths_of(config.type).warmup || warmup == kAutoSteps) return problems;
  if (is_deepspeed_warmup(config.type) && warmup < 1) {
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

}  // namespace zerorun
