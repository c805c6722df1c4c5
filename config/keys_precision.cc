#include <array>

#include "config/key_table.h"

namespace zerorun {

namespace {

constexpr std::string_view kFp16 = "/fp16/enabled";
constexpr std::string_view kAutocast = "/torch_autocast/enabled";

constexpr KeyBinding kBf16{
    .set =
        [](Config& config, const JsonNode& value) {
          config.precision.param_dtype = value.boolean ? DType::bf16 : DType::fp32;
        },
    .get =
        [](const Config& config) {
          return write_value(config.precision.param_dtype == DType::bf16);
        },
};

constexpr auto kKeys = std::to_array<KeySpec>({
    {.pointer = "/bf16",
     .doc = "Training in bfloat16. Master parameters and optimizer states are fp32.",
     .alias = "bfloat16"},
    {.pointer = "/bf16/enabled",
     .type = KeyType::boolean,
     .fallback = "false",
     .doc = "Parameters and gradients in bf16 instead of fp32.",
     .takes_auto = true,
     .binding = kBf16},
    no_effect("/bf16/immediate_grad_update", KeyType::boolean, "false",
              "Accumulates gradients in the backward hook.",
              "a bucket is reduced as soon as its gradients are complete"),
    always_on("/bf16/check_grad_overflow", "true", "Skips a step whose gradient is not finite."),
    not_yet("/bf16/bf16_master_weights_and_grads", KeyType::boolean, "false",
            "No fp32 master parameters."),
    not_yet("/bf16/bf16_optimizer_states", KeyType::boolean, "false", "Optimizer states in bf16."),

    block("/fp16", "Training in float16 with loss scaling."),
    not_yet(kFp16, KeyType::boolean, "false", "Parameters and gradients in fp16.", "use bf16"),
    gated(kFp16, "/fp16/auto_cast", KeyType::boolean, "false", "Casts float inputs to fp16."),
    with_range(
        gated(kFp16, "/fp16/loss_scale", KeyType::number, "0", "Constant loss scale; 0: dynamic."),
        kNonNegative),
    with_range(gated(kFp16, "/fp16/initial_scale_power", KeyType::integer, "16",
                     "First dynamic loss scale, as a power of two."),
               kNonNegative),
    with_range(gated(kFp16, "/fp16/loss_scale_window", KeyType::integer, "1000",
                     "Steps without overflow before the scale doubles."),
               kPositive),
    with_range(gated(kFp16, "/fp16/hysteresis", KeyType::integer, "2",
                     "Overflows before the scale halves."),
               kPositive),
    gated(kFp16, "/fp16/consecutive_hysteresis", KeyType::boolean, "false",
          "A step without overflow refills hysteresis."),
    with_range(gated(kFp16, "/fp16/min_loss_scale", KeyType::number, "1", "Lowest loss scale."),
               kNonNegative),
    gated(kFp16, "/fp16/fp16_master_weights_and_grads", KeyType::boolean, "false",
          "No fp32 master parameters."),

    removed("/amp", KeyType::free_form, "null", "NVIDIA apex mixed precision.", "use bf16"),

    block("/torch_autocast", "PyTorch's autocast around the forward pass."),
    not_yet(kAutocast, KeyType::boolean, "false", "Runs the forward pass under autocast.",
            "use bf16"),
    gated(kAutocast, "/torch_autocast/dtype", KeyType::string, "null", "dtype of autocast."),
    gated(kAutocast, "/torch_autocast/lower_precision_safe_modules", KeyType::strings, "null",
          "Modules whose parameters are communicated in low precision."),
});

}  // namespace

std::span<const KeySpec> precision_keys() { return kKeys; }

}  // namespace zerorun
