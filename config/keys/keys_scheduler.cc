#include <array>

#include "config/keys/key_table.h"

namespace zerorun {

namespace {

constexpr std::string_view kWarmupLr = "WarmupLR|WarmupDecayLR";
constexpr std::string_view kWarmup = "WarmupLR|WarmupDecayLR|WarmupCosineLR";
constexpr std::string_view kCosine = "WarmupCosineLR";
constexpr std::string_view kRangeTest = "LRRangeTest";
constexpr std::string_view kOneCycle = "OneCycle";
constexpr std::string_view kWsd = "WSD";

template <auto... Members>
constexpr KeyBinding bind() {
  return bind_member<&Config::scheduler, Members...>();
}

template <auto Member>
constexpr KeyBinding bind_range_test() {
  return bind<&SchedulerConfig::range_test, Member>();
}

template <auto Member>
constexpr KeyBinding bind_cycle() {
  return bind<&SchedulerConfig::one_cycle, Member>();
}

constexpr KeyBinding kType{
    .set = [](Config& config, const JsonNode& value) { read_value(value, config.scheduler.type); },
    .get = [](const Config& config) -> std::string {
      return config.scheduler.type.empty() ? "null" : write_value(config.scheduler.type);
    },
};

// Here 0 means "not given".
template <auto Member>
constexpr KeyBinding bind_steps() {
  KeyBinding binding = bind<Member>();
  binding.get = [](const Config& config) -> std::string {
    const int64_t value = config.scheduler.*Member;
    return value == 0 ? "null" : write_value(value);
  };
  return binding;
}

constexpr KeySpec param(std::string_view types, std::string_view pointer, unsigned type,
                        std::string_view fallback, std::string_view doc, KeyRange range,
                        KeyBinding binding) {
  return {.pointer = pointer,
          .type = type,
          .fallback = fallback,
          .range = range,
          .doc = doc,
          .used_by = types,
          .binding = binding};
}

constexpr KeySpec auto_waits(KeySpec spec) {
  spec.auto_waits = true;
  return spec;
}

constexpr KeySpec required(KeySpec spec) {
  spec.is_required = true;
  return spec;
}

constexpr unsigned kPerGroup = KeyType::number | KeyType::numbers;
constexpr KeyRange kMomentum{.low = 0, .high = 1};

constexpr auto kSchedulerKeys = std::to_array<KeySpec>({
    block("/scheduler", "Learning rate schedule; it advances with each step that is applied."),
    {.pointer = "/scheduler/type",
     .type = KeyType::string,
     .choices = "WarmupLR|WarmupDecayLR|WarmupCosineLR|OneCycle|LRRangeTest|cosine|linear|constant|"
                "WSD",
     .later = "LambdaLR|MultiplicativeLR|StepLR|MultiStepLR|ConstantLR|LinearLR|ExponentialLR|"
              "PolynomialLR|CosineAnnealingLR|CosineAnnealingWarmRestarts|CyclicLR|OneCycleLR|"
              "ReduceLROnPlateau",
     .doc = "The first five are DeepSpeed's, with its formulas. The others are zerorun's, with the "
            "formulas of Hugging Face: a linear warm-up to the group's learning rate, then half a "
            "cosine, a straight line, nothing, or a constant part and a decay at the end. Not "
            "given: learning rates stay.",
     .nickname = "name",
     .binding = kType},
    block("/scheduler/params",
          "Parameters of the schedule. Arrays hold one value per parameter "
          "group."),
    param(kWarmupLr, "/scheduler/params/warmup_min_lr", kPerGroup, "0",
          "Learning rate at the start.", kNonNegative, bind<&SchedulerConfig::warmup_min_lr>()),
    {.pointer = "/scheduler/params/warmup_max_lr",
     .type = kPerGroup,
     .range = kNonNegative,
     .doc = "Learning rate at the end of warm-up. Not given: the group's. auto: the optimizer's.",
     .used_by = kWarmupLr,
     .type_fallbacks = "WarmupDecayLR=0.001",
     .binding = bind<&SchedulerConfig::warmup_max_lr>()},
    {.pointer = "/scheduler/params/warmup_num_steps",
     .type = KeyType::integer,
     .fallback = "1000",
     .range = kNonNegative,
     .doc = "Steps of warm-up. DeepSpeed's types need at least 1 and use at least 2. auto: as the "
            "program asks.",
     .used_by = "WarmupLR|WarmupDecayLR|WarmupCosineLR|cosine|linear|constant|WSD",
     .type_fallbacks = "cosine=0|linear=0|constant=0|WSD=0",
     .auto_waits = true,
     .binding = bind<&SchedulerConfig::warmup_num_steps>()},
    {.pointer = "/scheduler/params/warmup_type",
     .type = KeyType::string,
     .fallback = R"("log")",
     .choices = "log|linear",
     .doc = "Shape of the warm-up.",
     .used_by = kWarmup,
     .binding = bind<&SchedulerConfig::warmup_type>()},
    required(auto_waits(param("WarmupDecayLR|WarmupCosineLR|cosine|linear|WSD",
                              "/scheduler/params/total_num_steps", KeyType::integer, "null",
                              "Steps until the lowest learning rate. auto: the steps of the run.",
                              kPositive, bind_steps<&SchedulerConfig::total_num_steps>()))),
    param(kCosine, "/scheduler/params/warmup_min_ratio", KeyType::number, "0",
          "Part of the group's learning rate that warm-up starts from.", kNonNegative,
          bind<&SchedulerConfig::warmup_min_ratio>()),
    param(kCosine, "/scheduler/params/cos_min_ratio", KeyType::number, "0.0001",
          "Part of the group's learning rate at the end.", kNonNegative,
          bind<&SchedulerConfig::cos_min_ratio>()),
    param("cosine|linear|WSD", "/scheduler/params/min_lr_ratio", KeyType::number, "0",
          "Part of the group's learning rate at the end.", {.low = 0, .high = 1},
          bind<&SchedulerConfig::min_lr_ratio>()),
    required(param(kWsd, "/scheduler/params/decay_num_steps", KeyType::integer, "null",
                   "Steps of the decay at the end.", kPositive,
                   bind_steps<&SchedulerConfig::decay_num_steps>())),
    {.pointer = "/scheduler/params/decay_type",
     .type = KeyType::string,
     .fallback = R"("cosine")",
     .choices = "linear|cosine|1-sqrt",
     .doc = "Shape of the decay at the end.",
     .used_by = kWsd,
     .binding = bind<&SchedulerConfig::decay_type>()},
    param("WarmupLR|WarmupDecayLR|WarmupCosineLR|OneCycle|LRRangeTest",
          "/scheduler/params/last_batch_iteration", KeyType::integer, "-1",
          "Step to continue from; -1: the beginning.", {.low = -1},
          bind<&SchedulerConfig::last_batch_iteration>()),

    param(kRangeTest, "/scheduler/params/lr_range_test_min_lr", kPerGroup, "0.001",
          "First learning rate.", kNonNegative, bind_range_test<&LrRangeTestConfig::min_lr>()),
    param(kRangeTest, "/scheduler/params/lr_range_test_step_size", KeyType::integer, "2000",
          "Steps in which the learning rate grows by step_rate times its first value.", kPositive,
          bind_range_test<&LrRangeTestConfig::step_size>()),
    param(kRangeTest, "/scheduler/params/lr_range_test_step_rate", KeyType::number, "1",
          "Size of an increase.", kNonNegative, bind_range_test<&LrRangeTestConfig::step_rate>()),
    param(kRangeTest, "/scheduler/params/lr_range_test_staircase", KeyType::boolean, "false",
          "Increases in stairs.", {}, bind_range_test<&LrRangeTestConfig::staircase>()),

    required(param(kOneCycle, "/scheduler/params/cycle_min_lr", kPerGroup, "null",
                   "Lowest learning rate of the cycle.", kNonNegative,
                   bind_cycle<&OneCycleConfig::min_lr>())),
    required(param(kOneCycle, "/scheduler/params/cycle_max_lr", kPerGroup, "null",
                   "Highest learning rate of the cycle.", kNonNegative,
                   bind_cycle<&OneCycleConfig::max_lr>())),
    param(kOneCycle, "/scheduler/params/decay_lr_rate", KeyType::number, "0",
          "Decay after the cycle.", kNonNegative, bind_cycle<&OneCycleConfig::decay_lr_rate>()),
    param(kOneCycle, "/scheduler/params/cycle_first_step_size", KeyType::integer, "2000",
          "Steps of the rising half.", kPositive, bind_cycle<&OneCycleConfig::first_step_size>()),
    param(kOneCycle, "/scheduler/params/cycle_second_step_size", KeyType::integer, "null",
          "Steps of the falling half. Not given: as many as the rising one.", kNonNegative,
          bind_cycle<&OneCycleConfig::second_step_size>()),
    param(kOneCycle, "/scheduler/params/cycle_first_stair_count", KeyType::integer, "0",
          "Stairs of the rising half; 0: continuous.", kNonNegative,
          bind_cycle<&OneCycleConfig::first_stair_count>()),
    param(kOneCycle, "/scheduler/params/cycle_second_stair_count", KeyType::integer, "null",
          "Stairs of the falling half. Not given: as many as the rising one.", kNonNegative,
          bind_cycle<&OneCycleConfig::second_stair_count>()),
    param(kOneCycle, "/scheduler/params/decay_step_size", KeyType::integer, "0",
          "Steps per decay after the cycle; 0: no decay.", kNonNegative,
          bind_cycle<&OneCycleConfig::decay_step_size>()),
    param(kOneCycle, "/scheduler/params/cycle_momentum", KeyType::boolean, "true",
          "beta1 cycles too, against the learning rate, and beta2 becomes 0.99. Optimizers with "
          "betas only.",
          {}, bind_cycle<&OneCycleConfig::cycle_momentum>()),
    param(kOneCycle, "/scheduler/params/cycle_min_mom", kPerGroup, "0.8", "Lowest beta1.",
          kMomentum, bind_cycle<&OneCycleConfig::min_momentum>()),
    param(kOneCycle, "/scheduler/params/cycle_max_mom", kPerGroup, "0.9", "Highest beta1.",
          kMomentum, bind_cycle<&OneCycleConfig::max_momentum>()),
    param(kOneCycle, "/scheduler/params/decay_mom_rate", KeyType::number, "0",
          "Growth of beta1 after the cycle.", kNonNegative,
          bind_cycle<&OneCycleConfig::decay_momentum_rate>()),
});

}  // namespace

std::span<const KeySpec> scheduler_keys() { return kSchedulerKeys; }

}  // namespace zerorun
