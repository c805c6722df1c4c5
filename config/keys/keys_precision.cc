#include <array>

#include "config/keys/key_table.h"

namespace zerorun {

namespace {

constexpr std::string_view kBf16Gate = "/bf16/enabled";
constexpr std::string_view kFp16Gate = "/fp16/enabled";
constexpr std::string_view kAutocast = "/torch_autocast/enabled";

// `enabled` of the section for a dtype. If none is enabled, parameters are fp32.
template <DType dtype>
constexpr KeyBinding bind_enabled() {
  return {
      .set =
          [](Config& config, const JsonNode& value) {
            if (value.boolean) config.precision.param_dtype = dtype;
          },
      .get =
          [](const Config& config) { return write_value(config.precision.param_dtype == dtype); },
  };
}

template <auto Member>
constexpr KeyBinding bind_scaler() {
  return bind_member<&Config::precision, &PrecisionConfig::loss_scaler, Member>();
}

// These keys have no binding: config/derive.cc computes the members of Config for the enabled
// dtype.
constexpr KeySpec option(std::string_view gate, std::string_view pointer, std::string_view doc) {
  return with_gate(gate, key(pointer, KeyType::boolean, "false", doc));
}

constexpr auto kPrecisionKeys = std::to_array<KeySpec>({
    {.pointer = "/bf16", .doc = "Training in bfloat16.", .alias = "bfloat16"},
    key(kBf16Gate, KeyType::boolean, "false",
        "Keeps parameters and gradients in bf16 instead of fp32.", bind_enabled<DType::bf16>()),
    no_effect("/bf16/immediate_grad_update", KeyType::boolean, "false",
              "Accumulates gradients in the hook of each parameter.",
              "a bucket is reduced as soon as its gradients are complete"),
    with_gate(kBf16Gate,
              key("/bf16/check_grad_overflow", KeyType::boolean, "true",
                  "Skips a step if its gradient is not finite.",
                  bind_member<&Config::precision, &PrecisionConfig::check_grad_overflow>())),
    option(kBf16Gate, "/bf16/bf16_master_weights_and_grads",
           "Keeps no fp32 master parameters: the optimizer updates the bf16 parameters with "
           "stochastic rounding."),
    option(kBf16Gate, "/bf16/bf16_optimizer_states",
           "Keeps optimizer states in bf16 with stochastic rounding; requires "
           "bf16_master_weights_and_grads."),

    block("/fp16", "Training in float16 with loss scaling."),
    key(kFp16Gate, KeyType::boolean, "false",
        "Keeps parameters and gradients in fp16 instead of fp32. The loss is scaled.",
        bind_enabled<DType::fp16>()),
    with_gate(kFp16Gate,
              key("/fp16/auto_cast", KeyType::boolean, "false",
                  "Casts the floating-point inputs of the model to fp16.",
                  bind_member<&Config::precision, &PrecisionConfig::auto_cast_inputs>())),
    with_gate(kFp16Gate,
              key("/fp16/loss_scale", KeyType::number, "0", "Constant loss scale; 0: dynamic.",
                  bind_scaler<&LossScalerOptions::static_scale>(), kNonNegative)),
    with_gate(kFp16Gate, key("/fp16/initial_scale_power", KeyType::integer, "16",
                             "Initial dynamic loss scale, as a power of two: 16 means 65536.",
                             bind_scaler<&LossScalerOptions::initial_scale_power>(),
                             {.low = 0, .high = 1000})),
    with_gate(kFp16Gate, key("/fp16/loss_scale_window", KeyType::integer, "1000",
                             "Number of steps without overflow after which the loss scale doubles.",
                             bind_scaler<&LossScalerOptions::window>(), kPositive)),
    with_gate(kFp16Gate, key("/fp16/hysteresis", KeyType::integer, "2",
                             "Number of overflows after which the loss scale is halved.",
                             bind_scaler<&LossScalerOptions::hysteresis>(), kPositive)),
    with_gate(kFp16Gate, key("/fp16/consecutive_hysteresis", KeyType::boolean, "false",
                             "Restarts counting the overflows of hysteresis after every step "
                             "without overflow, not only when the scale doubles.",
                             bind_scaler<&LossScalerOptions::consecutive_hysteresis>())),
    with_gate(kFp16Gate,
              key("/fp16/min_loss_scale", KeyType::number, "1",
                  "Minimum dynamic loss scale, above 0; an overflow at the minimum ends the run.",
                  bind_scaler<&LossScalerOptions::min_scale>(), kNonNegative)),
    option(kFp16Gate, "/fp16/fp16_master_weights_and_grads",
           "Keeps no fp32 master parameters: the optimizer updates the fp16 parameters with "
           "stochastic rounding."),

    removed("/amp", KeyType::free_form, "null", "NVIDIA apex mixed precision.", "use bf16"),

    block("/torch_autocast", "PyTorch's autocast around the forward pass."),
    pytorch(kAutocast, KeyType::boolean, "false",
            "Runs the engine's forward pass under autocast; parameters stay fp32."),
    with_gate(kAutocast,
              with_choices(pytorch("/torch_autocast/dtype", KeyType::string, R"("bfloat16")",
                                   "dtype of autocast. With float16 the loss is scaled as "
                                   "torch.amp.GradScaler does."),
                           "bfloat16|bf16|torch.bfloat16|float16|fp16|half|torch.float16")),
    no_effect("/torch_autocast/lower_precision_safe_modules", KeyType::strings, "null",
              "Modules whose parameters are communicated in low precision.",
              "communication_data_type determines the dtype; fp32 loses no precision"),
});

}  // namespace

std::span<const KeySpec> precision_keys() { return kPrecisionKeys; }

}  // namespace zerorun
