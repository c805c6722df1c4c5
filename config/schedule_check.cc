#include "config/schedule_check.h"

#include <fmt/format.h>

namespace zerorun {

namespace {

constexpr std::string_view kWarmup = "/scheduler/params/warmup_num_steps";
constexpr std::string_view kDecay = "/scheduler/params/decay_num_steps";

bool is_deepspeed_warmup(std::string_view type) { return type.starts_with("Warmup"); }

bool has_warmup(std::string_view type) {
  return is_deepspeed_warmup(type) || type == "cosine" || type == "linear" || type == "constant" ||
         type == "WSD";
}

bool has_total(std::string_view type) {
  return has_warmup(type) && type != "WarmupLR" && type != "constant";
}

}  // namespace

std::vector<KeyProblem> schedule_problems(const SchedulerConfig& config) {
  std::vector<KeyProblem> problems;
  const int64_t warmup = config.warmup_num_steps;
  const int64_t total = config.total_num_steps;
  const int64_t decay = config.type == "WSD" ? config.decay_num_steps : 0;
  if (!has_warmup(config.type) || warmup == kAutoSteps) return problems;
  if (is_deepspeed_warmup(config.type) && warmup < 1) {
    problems.push_back({kWarmup, fmt::format("got {}, expected an integer of at least 1 for {}",
                                             warmup, config.type)});
  }
  if (!has_total(config.type) || total == 0) return problems;
  if (warmup > total) {
    problems.push_back(
        {kWarmup, fmt::format("got {} steps of warm-up, expected at most total_num_steps, {}",
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
