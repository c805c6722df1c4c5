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

template <auto Member>
constexpr KeyBinding bind_given() {
  return bind_if_given<&Config::scheduler, Member>();
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
    block("/scheduler",
          "Learning rate schedule. It advances with each applied step, not with skipped steps."),
    {.pointer = "/scheduler/type",
     .type = KeyType::string,
     .choices = "WarmupLR|WarmupDecayLR|WarmupCosineLR|OneCycle|LRRangeTest|cosine|linear|constant|"
                "WSD",
     .torch_classes =
         "LambdaLR|MultiplicativeLR|StepLR|MultiStepLR|ConstantLR|LinearLR|ExponentialLR|"
         "PolynomialLR|CosineAnnealingLR|CosineAnnealingWarmRestarts|CyclicLR|OneCycleLR|"
         "ReduceLROnPlateau",
     .doc =
         "Name of the schedule. The first five are DeepSpeed's, with its formulas. The others have "
         "the formulas of Hugging Face: a linear warm-up to the group's learning rate, then half a "
         "cosine (cosine), a straight line (linear), a constant rate (constant), or a constant "
         "rate and a decay at the end (WSD). Not given: learning rates do not change.",
     .nickname = "name",
     .binding = bind_given<&SchedulerConfig::type>()},
    block("/scheduler/params",
          "Parameters of the schedule. An array has one value per parameter group."),
    param(kWarmupLr, "/scheduler/params/warmup_min_lr", kPerGroup, "0",
          "Learning rate at the start of the warm-up.", kNonNegative,
          bind<&SchedulerConfig::warmup_min_lr>()),
    {.pointer = "/scheduler/params/warmup_max_lr",
     .type = kPerGroup,
     .range = kNonNegative,
     .doc = "Learning rate at the end of the warm-up. Not given: that of the group. auto: that of "
            "the optimizer.",
     .used_by = kWarmupLr,
     .type_fallbacks = "WarmupDecayLR=0.001",
     .binding = bind<&SchedulerConfig::warmup_max_lr>()},
    {.pointer = "/scheduler/params/warmup_num_steps",
     .type = KeyType::integer,
     .fallback = "1000",
     .range = kNonNegative,
     .doc = "Number of warm-up steps. DeepSpeed's types use at least 2. "
            "auto: the program sets it.",
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
                              "Number of steps until the lowest learning rate is reached. auto: "
                              "the number of steps of the run.",
                              kPositive, bind_given<&SchedulerConfig::total_num_steps>()))),
    param(kCosine, "/scheduler/params/warmup_min_ratio", KeyType::number, "0",
          "Initial learning rate of the warm-up, as a fraction of the group's learning rate.",
          kNonNegative, bind<&SchedulerConfig::warmup_min_ratio>()),
    param(kCosine, "/scheduler/params/cos_min_ratio", KeyType::number, "0.0001",
          "Final learning rate, as a fraction of the group's learning rate.", kNonNegative,
          bind<&SchedulerConfig::cos_min_ratio>()),
    param("cosine|linear|WSD", "/scheduler/params/min_lr_ratio", KeyType::number, "0",
          "Final learning rate, as a fraction of the group's learning rate.", {.low = 0, .high = 1},
          bind<&SchedulerConfig::min_lr_ratio>()),
    required(param(kWsd, "/scheduler/params/decay_num_steps", KeyType::integer, "null",
                   "Number of steps of the decay at the end.", kPositive,
                   bind_given<&SchedulerConfig::decay_num_steps>())),
    {.pointer = "/scheduler/params/decay_type",
     .type = KeyType::string,
     .fallback = R"("cosine")",
     .choices = "linear|cosine|1-sqrt",
     .doc = "Shape of the decay at the end.",
     .used_by = kWsd,
     .binding = bind<&SchedulerConfig::decay_type>()},
    param("WarmupLR|WarmupDecayLR|WarmupCosineLR|OneCycle|LRRangeTest",
          "/scheduler/params/last_batch_iteration", KeyType::integer, "-1",
          "Step to continue from; -1: start at the beginning.", {.low = -1},
          bind<&SchedulerConfig::last_batch_iteration>()),

    param(kRangeTest, "/scheduler/params/lr_range_test_min_lr", kPerGroup, "0.001",
          "Initial learning rate.", kNonNegative, bind_range_test<&LrRangeTestConfig::min_lr>()),
    param(kRangeTest, "/scheduler/params/lr_range_test_step_size", KeyType::integer, "2000",
          "Number of steps in which the learning rate grows by lr_range_test_step_rate times its "
          "initial value.",
          kPositive, bind_range_test<&LrRangeTestConfig::step_size>()),
    param(kRangeTest, "/scheduler/params/lr_range_test_step_rate", KeyType::number, "1",
          "Increase per lr_range_test_step_size steps, relative to the initial learning rate.",
          kNonNegative, bind_range_test<&LrRangeTestConfig::step_rate>()),
    param(kRangeTest, "/scheduler/params/lr_range_test_staircase", KeyType::boolean, "false",
          "Increases the learning rate in stairs instead of continuously.", {},
          bind_range_test<&LrRangeTestConfig::staircase>()),

    required(param(kOneCycle, "/scheduler/params/cycle_min_lr", kPerGroup, "null",
                   "Lowest learning rate of the cycle.", kNonNegative,
                   bind_cycle<&OneCycleConfig::min_lr>())),
    required(param(kOneCycle, "/scheduler/params/cycle_max_lr", kPerGroup, "null",
                   "Highest learning rate of the cycle.", kNonNegative,
                   bind_cycle<&OneCycleConfig::max_lr>())),
    param(kOneCycle, "/scheduler/params/decay_lr_rate", KeyType::number, "0",
          "Decay rate of the learning rate after the cycle.", kNonNegative,
          bind_cycle<&OneCycleConfig::decay_lr_rate>()),
    param(kOneCycle, "/scheduler/params/cycle_first_step_size", KeyType::integer, "2000",
          "Number of steps of the first half, in which the learning rate rises.", kPositive,
          bind_cycle<&OneCycleConfig::first_step_size>()),
    param(kOneCycle, "/scheduler/params/cycle_second_step_size", KeyType::integer, "null",
          "Number of steps of the second half, in which it falls. Not given: as many as in the "
          "first half.",
          kNonNegative, bind_cycle<&OneCycleConfig::second_step_size>()),
    param(kOneCycle, "/scheduler/params/cycle_first_stair_count", KeyType::integer, "0",
          "Number of stairs of the first half; 0: continuous.", kNonNegative,
          bind_cycle<&OneCycleConfig::first_stair_count>()),
    param(kOneCycle, "/scheduler/params/cycle_second_stair_count", KeyType::integer, "null",
          "Number of stairs of the second half. Not given: as many as in the first half.",
          kNonNegative, bind_cycle<&OneCycleConfig::second_stair_count>()),
    param(kOneCycle, "/scheduler/params/decay_step_size", KeyType::integer, "0",
          "Number of steps between two decays after the cycle; 0: no decay.", kNonNegative,
          bind_cycle<&OneCycleConfig::decay_step_size>()),
    param(kOneCycle, "/scheduler/params/cycle_momentum", KeyType::boolean, "true",
          "Also cycles beta1, inversely to the learning rate, and sets beta2 to 0.99. Only for "
          "optimizers with betas.",
          {}, bind_cycle<&OneCycleConfig::cycle_momentum>()),
    param(kOneCycle, "/scheduler/params/cycle_min_mom", kPerGroup, "0.8", "Minimum of beta1.",
          kMomentum, bind_cycle<&OneCycleConfig::min_momentum>()),
    param(kOneCycle, "/scheduler/params/cycle_max_mom", kPerGroup, "0.9", "Maximum of beta1.",
          kMomentum, bind_cycle<&OneCycleConfig::max_momentum>()),
    param(kOneCycle, "/scheduler/params/decay_mom_rate", KeyType::number, "0",
          "Growth rate of beta1 after the cycle.", kNonNegative,
          bind_cycle<&OneCycleConfig::decay_momentum_rate>()),
});

}  // namespace

std::span<const KeySpec> scheduler_keys() { return kSchedulerKeys; }

}  // namespace zerorun
