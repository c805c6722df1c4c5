#include <array>

#include "config/key_table.h"

namespace zerorun {

namespace {

constexpr KeySpec param(std::string_view pointer, unsigned type, std::string_view fallback,
                        std::string_view doc) {
  return gated("/scheduler/type", pointer, type, fallback, doc);
}

constexpr auto kKeys = std::to_array<KeySpec>({
    block("/scheduler", "Learning rate schedule."),
    not_yet("/scheduler/type", KeyType::string, "null", "Name of the schedule.",
            "remove the block for a constant learning rate"),
    block("/scheduler/params", "Parameters of the schedule."),
    param("/scheduler/params/warmup_min_lr", KeyType::number, "0",
          "Warm-up schedules: learning rate at the start."),
    param("/scheduler/params/warmup_max_lr", KeyType::number, "null",
          "Warm-up schedules: learning rate at the end of warm-up."),
    param("/scheduler/params/warmup_num_steps", KeyType::integer, "1000",
          "Warm-up schedules: steps of warm-up."),
    with_choices(param("/scheduler/params/warmup_type", KeyType::string, R"("log")",
                       "Warm-up schedules: shape of the warm-up."),
                 "log|linear"),
    param("/scheduler/params/total_num_steps", KeyType::integer, "null",
          "WarmupDecayLR, WarmupCosineLR: steps until the lowest learning rate."),
    param("/scheduler/params/warmup_min_ratio", KeyType::number, "0",
          "WarmupCosineLR: ratio to the base rate at the start."),
    param("/scheduler/params/cos_min_ratio", KeyType::number, "0.0001",
          "WarmupCosineLR: ratio to the base rate at the end."),
    param("/scheduler/params/last_batch_iteration", KeyType::integer, "-1",
          "Step to continue from."),
    param("/scheduler/params/lr_range_test_min_lr", KeyType::number, "0.001",
          "LRRangeTest: first learning rate."),
    param("/scheduler/params/lr_range_test_step_size", KeyType::integer, "2000",
          "LRRangeTest: steps per increase."),
    param("/scheduler/params/lr_range_test_step_rate", KeyType::number, "1",
          "LRRangeTest: size of an increase."),
    param("/scheduler/params/lr_range_test_staircase", KeyType::boolean, "false",
          "LRRangeTest: increases in stairs."),
    param("/scheduler/params/cycle_min_lr", KeyType::number, "null", "OneCycle: lowest rate."),
    param("/scheduler/params/cycle_max_lr", KeyType::number, "null", "OneCycle: highest rate."),
    param("/scheduler/params/decay_lr_rate", KeyType::number, "0",
          "OneCycle: decay after the cycle."),
    param("/scheduler/params/cycle_first_step_size", KeyType::integer, "2000",
          "OneCycle: steps of the first half."),
    param("/scheduler/params/cycle_second_step_size", KeyType::integer, "null",
          "OneCycle: steps of the second half."),
    param("/scheduler/params/cycle_first_stair_count", KeyType::integer, "0",
          "OneCycle: stairs of the first half."),
    param("/scheduler/params/cycle_second_stair_count", KeyType::integer, "null",
          "OneCycle: stairs of the second half."),
    param("/scheduler/params/decay_step_size", KeyType::integer, "0", "OneCycle: steps per decay."),
    param("/scheduler/params/cycle_momentum", KeyType::boolean, "true",
          "OneCycle: momentum cycles too."),
    param("/scheduler/params/cycle_min_mom", KeyType::number, "0.8", "OneCycle: lowest momentum."),
    param("/scheduler/params/cycle_max_mom", KeyType::number, "0.9", "OneCycle: highest momentum."),
    param("/scheduler/params/decay_mom_rate", KeyType::number, "0",
          "OneCycle: decay of momentum after the cycle."),
});

}  // namespace

std::span<const KeySpec> scheduler_keys() { return kKeys; }

}  // namespace zerorun
