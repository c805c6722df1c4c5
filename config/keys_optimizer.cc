#include <fmt/format.h>

#include <array>

#include "config/key_table.h"

namespace zerorun {

namespace {

constexpr KeyBinding kBetas{
    .set =
        [](Config& config, const JsonNode& value) {
          read_value(value.children[0], config.optimizer.beta1);
          read_value(value.children[1], config.optimizer.beta2);
        },
    .get =
        [](const Config& config) {
          return fmt::format("[{},{}]", config.optimizer.beta1, config.optimizer.beta2);
        },
};

constexpr std::string_view kOtherOptimizer = "remove it; Adam and AdamW do not take it";

// A parameter of optimizers other than Adam and AdamW.
constexpr KeySpec other(std::string_view pointer, unsigned type, std::string_view doc) {
  return not_yet(pointer, type, "null", doc, kOtherOptimizer);
}

constexpr auto kKeys = std::to_array<KeySpec>({
    block("/optimizer", "The optimizer and its hyperparameters."),
    {.pointer = "/optimizer/type",
     .type = KeyType::string,
     .fallback = R"("AdamW")",
     .choices = "Adam|AdamW",
     .later = "Adagrad|Lamb|Lion|OneBitAdam|OneBitLamb|ZeroOneAdam|MuAdam|MuAdamW|MuSGD|Muon|SGD|"
              "Adamax|NAdam|RAdam|Adadelta|Adafactor|ASGD|RMSprop|Rprop|SparseAdam|LBFGS",
     .doc = "Adam or AdamW. Which of the two update rules is used depends on params.adam_w_mode "
            "alone, as in DeepSpeed.",
     .nickname = "name",
     .binding = bind_member<&Config::optimizer, &OptimizerConfig::type>()},
    no_effect("/optimizer/legacy_fusion", KeyType::boolean, "false",
              "How DeepSpeed flattens fp16 groups without ZeRO.", "buffers are always flat"),
    block("/optimizer/params", "Hyperparameters of the optimizer."),
    {.pointer = "/optimizer/params/lr",
     .type = KeyType::number,
     .fallback = "0.001",
     .range = kNonNegativeFloat,
     .doc = "Learning rate.",
     .nickname = "learning_rate",
     .takes_auto = true,
     .binding = bind_member<&Config::optimizer, &OptimizerConfig::lr>()},
    {.pointer = "/optimizer/params/betas",
     .type = KeyType::betas,
     .fallback = "[0.9,0.999]",
     .doc = "Decay of the running means of the gradient and of its square.",
     .nickname = "beta1",
     .takes_auto = true,
     .binding = kBetas},
    {.pointer = "/optimizer/params/eps",
     .type = KeyType::number,
     .fallback = "1e-08",
     .range = kNonNegativeFloat,
     .doc = "Added to the root of the mean square.",
     .nickname = "epsilon",
     .takes_auto = true,
     .binding = bind_member<&Config::optimizer, &OptimizerConfig::eps>()},
    {.pointer = "/optimizer/params/weight_decay",
     .type = KeyType::number,
     .fallback = "0",
     .range = kNonNegativeFloat,
     .doc = "Weight decay; decoupled from the gradient unless adam_w_mode is false.",
     .takes_auto = true,
     .binding = bind_member<&Config::optimizer, &OptimizerConfig::weight_decay>()},
    {.pointer = "/optimizer/params/bias_correction",
     .type = KeyType::boolean,
     .fallback = "true",
     .doc = "Corrects the running means for their start at zero.",
     .takes_auto = true,
     .binding = bind_member<&Config::optimizer, &OptimizerConfig::bias_correction>()},
    {.pointer = "/optimizer/params/adam_w_mode",
     .type = KeyType::boolean,
     .fallback = "true",
     .doc = "true: decoupled weight decay (AdamW), for type Adam too, as in DeepSpeed. false: "
            "weight decay is added to the gradient (Adam with L2).",
     .takes_auto = true,
     .binding = bind_member<&Config::optimizer, &OptimizerConfig::adam_w_mode>()},
    no_effect("/optimizer/params/torch_adam", KeyType::boolean, "false",
              "Uses PyTorch's Adam instead of a fused one.",
              "the fused kernel computes the same formula"),
    not_yet("/optimizer/params/amsgrad", KeyType::boolean, "false",
            "Uses the maximum of past mean squares."),
    always_on("/optimizer/params/fp32_optimizer_states", "true", "Running means are kept in fp32."),
    always_on("/optimizer/params/set_grad_none", "true", "Gradients are not zeroed by a pass."),
    no_effect("/optimizer/params/fused", KeyType::boolean, "null", "PyTorch's fused kernel.",
              "the kernel is always fused"),
    no_effect("/optimizer/params/foreach", KeyType::boolean, "null",
              "PyTorch's multi-tensor kernel.", "the kernel is always fused"),
    removed("/optimizer/params/max_grad_norm", KeyType::number, "null", "Refused by DeepSpeed too.",
            "use /gradient_clipping"),
    other("/optimizer/params/momentum", KeyType::number, "SGD, Muon: momentum."),
    other("/optimizer/params/nesterov", KeyType::boolean, "SGD, Muon: Nesterov momentum."),
    other("/optimizer/params/eps_inside_sqrt", KeyType::boolean, "Lamb: eps under the root."),
    other("/optimizer/params/max_coeff", KeyType::number, "Lamb: upper limit of the trust ratio."),
    other("/optimizer/params/min_coeff", KeyType::number, "Lamb: lower limit of the trust ratio."),
    other("/optimizer/params/muon_lr", KeyType::number, "Muon: learning rate of matrices."),
    other("/optimizer/params/adam_lr", KeyType::number, "Muon: learning rate of the rest."),
    other("/optimizer/params/ns_method", KeyType::string, "Muon: Newton-Schulz variant."),
    other("/optimizer/params/freeze_step", KeyType::integer,
          "OneBitAdam, OneBitLamb: steps before compression."),
    other("/optimizer/params/cuda_aware", KeyType::boolean, "1-bit optimizers: CUDA-aware MPI."),
    other("/optimizer/params/comm_backend_name", KeyType::string, "1-bit optimizers: transport."),
    other("/optimizer/params/var_freeze_step", KeyType::integer,
          "ZeroOneAdam: last step of variance updates."),
    other("/optimizer/params/var_update_scaler", KeyType::integer,
          "ZeroOneAdam: growth of the variance update interval."),
    other("/optimizer/params/local_step_scaler", KeyType::integer,
          "ZeroOneAdam: growth of the local step interval."),
    other("/optimizer/params/local_step_clipper", KeyType::integer,
          "ZeroOneAdam: largest local step interval."),
    other("/optimizer/params/coeff_beta", KeyType::number, "OneBitLamb: decay of the coefficient."),
    other("/optimizer/params/factor_max", KeyType::number,
          "OneBitLamb: upper limit of the factor."),
    other("/optimizer/params/factor_min", KeyType::number,
          "OneBitLamb: lower limit of the factor."),
    other("/optimizer/params/factor_threshold", KeyType::number,
          "OneBitLamb: largest change of the factor per step."),
});

}  // namespace

std::span<const KeySpec> optimizer_keys() { return kKeys; }

}  // namespace zerorun
