#include <fmt/format.h>

#include <array>

#include "config/keys/key_table.h"

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

constexpr std::string_view kAdam = "Adam|AdamW|Adam8bit|AdamW8bit";
constexpr std::string_view kWithBetas = "Adam|AdamW|Adam8bit|AdamW8bit|Lion|Lamb|Muon";
constexpr std::string_view kFused = "the kernel is always fused";

// A parameter of some optimizers, with the member of OptimizerConfig that stores it.
template <auto Member>
constexpr KeySpec param(std::string_view types, std::string_view pointer, unsigned type,
                        std::string_view fallback, std::string_view doc, KeyRange range = {}) {
  return {.pointer = pointer,
          .type = type,
          .fallback = fallback,
          .range = range,
          .doc = doc,
          .used_by = types,
          .binding = bind_member<&Config::optimizer, Member>()};
}

// A parameter of optimizers that DeepSpeed has removed, too.
constexpr KeySpec gone(std::string_view pointer, unsigned type, std::string_view doc) {
  return removed(pointer, type, "null", doc, "remove it");
}

constexpr auto kOptimizerKeys = std::to_array<KeySpec>({
    block("/optimizer", "The optimizer and its hyperparameters."),
    {.pointer = "/optimizer/type",
     .type = KeyType::string,
     .fallback = R"("AdamW")",
     .choices = "Adam|AdamW|SGD|Adagrad|Lion|Lamb|Muon|Adam8bit|AdamW8bit",
     .later = "OneBitAdam|OneBitLamb|ZeroOneAdam|MuAdam|MuAdamW|MuSGD|Adafactor|SparseAdam|LBFGS|"
              "NorMuon",
     .torch_classes = "Adamax|NAdam|RAdam|Adadelta|ASGD|RMSprop|Rprop",
     .doc = "Name of the optimizer. As in DeepSpeed, AdamW decouples weight decay from the "
            "gradient, and so does Adam unless params.adam_w_mode is false. Adam8bit and AdamW8bit "
            "are specific to zerorun: block-wise 8-bit states.",
     .nickname = "name",
     .binding = bind_member<&Config::optimizer, &OptimizerConfig::type>()},
    no_effect("/optimizer/legacy_fusion", KeyType::boolean, "false",
              "Selects how DeepSpeed flattens fp16 groups without ZeRO.",
              "buffers are always flat"),
    block("/optimizer/params", "Hyperparameters of the optimizer."),
    {.pointer = "/optimizer/params/lr",
     .type = KeyType::number,
     .fallback = "0.001",
     .range = kNonNegativeFloat,
     .doc = "Learning rate. Muon: for all parameters, unless muon_lr or adam_lr is given.",
     .nickname = "learning_rate",
     .type_fallbacks = "Adagrad=0.01|Muon=0.02",
     .binding = bind_member<&Config::optimizer, &OptimizerConfig::lr>()},
    {.pointer = "/optimizer/params/betas",
     .type = KeyType::betas,
     .fallback = "[0.9,0.999]",
     .doc = "Decay rates of the running means of the gradient and of its square. Muon: betas and "
            "eps apply to the parameters that AdamW updates.",
     .nickname = "beta1",
     .used_by = kWithBetas,
     .type_fallbacks = "Muon=[0.9,0.95]",
     .binding = kBetas},
    {.pointer = "/optimizer/params/eps",
     .type = KeyType::number,
     .fallback = "1e-08",
     .range = kNonNegativeFloat,
     .doc = "Added to the square root of the mean square, for numerical stability.",
     .nickname = "epsilon",
     .used_by = "Adam|AdamW|Adam8bit|AdamW8bit|Adagrad|Lamb|Muon",
     .type_fallbacks = "Adagrad=1e-10|Muon=1e-10",
     .binding = bind_member<&Config::optimizer, &OptimizerConfig::eps>()},
    key("/optimizer/params/weight_decay", KeyType::number, "0",
        "Weight decay. AdamW, and Adam unless adam_w_mode is false: decoupled from the gradient.",
        bind_member<&Config::optimizer, &OptimizerConfig::weight_decay>(), kNonNegativeFloat),
    {.pointer = "/optimizer/params/bias_correction",
     .type = KeyType::boolean,
     .fallback = "true",
     .doc = "Corrects the bias of the running means that comes from their initial value, zero.",
     .used_by = "Adam|AdamW|Adam8bit|AdamW8bit|Lamb",
     .binding = bind_member<&Config::optimizer, &OptimizerConfig::bias_correction>()},
    {.pointer = "/optimizer/params/adam_w_mode",
     .type = KeyType::boolean,
     .fallback = "true",
     .doc = "true: decoupled weight decay (AdamW), for type Adam too, as in DeepSpeed. false: "
            "Adam adds weight decay to the gradient (L2); AdamW decouples it all the same.",
     .used_by = kAdam,
     .binding = bind_member<&Config::optimizer, &OptimizerConfig::adam_w_mode>()},
    key("/optimizer/params/torch_adam", KeyType::boolean, "false",
        "Selects PyTorch's Adam in DeepSpeed. Here the fused kernel computes the same formula; the "
        "key only changes the default weight_decay of AdamW (and of Adam with adam_w_mode) to "
        "PyTorch's 0.01."),
    not_yet("/optimizer/params/amsgrad", KeyType::boolean, "false",
            "Uses the maximum of past mean squares."),
    always_on("/optimizer/params/fp32_optimizer_states", "true",
              "Keeps the running means in fp32."),
    always_on("/optimizer/params/set_grad_none", "true",
              "Does not spend a pass on setting gradients to zero."),
    no_effect("/optimizer/params/fused", KeyType::boolean, "null", "Uses PyTorch's fused kernel.",
              kFused),
    no_effect("/optimizer/params/foreach", KeyType::boolean, "null",
              "Uses PyTorch's multi-tensor kernel.", kFused),
    removed("/optimizer/params/max_grad_norm", KeyType::number, "null",
            "Maximum norm of the gradient; DeepSpeed rejects this key, too.",
            "use /gradient_clipping"),
    {.pointer = "/optimizer/params/momentum",
     .type = KeyType::number,
     .fallback = "0",
     .range = {.low = 0, .high = 1},
     .doc = "Decay rate of the running mean of the gradient.",
     .used_by = "SGD|Muon",
     .type_fallbacks = "Muon=0.95",
     .binding = bind_member<&Config::optimizer, &OptimizerConfig::momentum>()},
    param<&OptimizerConfig::dampening>(
        "SGD", "/optimizer/params/dampening", KeyType::number, "0",
        "Fraction of the gradient that is not added to the running mean."),
    {.pointer = "/optimizer/params/nesterov",
     .type = KeyType::boolean,
     .fallback = "false",
     .doc = "Uses Nesterov momentum.",
     .used_by = "SGD|Muon",
     .type_fallbacks = "Muon=true",
     .binding = bind_member<&Config::optimizer, &OptimizerConfig::nesterov>()},
    param<&OptimizerConfig::lr_decay>(
        "Adagrad", "/optimizer/params/lr_decay", KeyType::number, "0",
        "Divides the learning rate by 1 + lr_decay x (number of previous steps).", kNonNegative),
    param<&OptimizerConfig::eps_inside_sqrt>("Lamb", "/optimizer/params/eps_inside_sqrt",
                                             KeyType::boolean, "false",
                                             "Adds eps before taking the square root, not after."),
    param<&OptimizerConfig::max_coeff>("Lamb", "/optimizer/params/max_coeff", KeyType::number, "10",
                                       "Upper limit of the trust ratio.", kNonNegativeFloat),
    param<&OptimizerConfig::min_coeff>("Lamb", "/optimizer/params/min_coeff", KeyType::number,
                                       "0.01", "Lower limit of the trust ratio.",
                                       kNonNegativeFloat),
    param<&OptimizerConfig::muon_lr>(
        "Muon", "/optimizer/params/muon_lr", KeyType::number, "0.02",
        "Learning rate of the matrices, which Muon updates. Not given: lr.", kNonNegativeFloat),
    param<&OptimizerConfig::adam_lr>("Muon", "/optimizer/params/adam_lr", KeyType::number, "0.0003",
                                     "Learning rate of the other parameters, which AdamW updates. "
                                     "Not given: lr, if that is given.",
                                     kNonNegativeFloat),
    param<&OptimizerConfig::ns_steps>("Muon", "/optimizer/params/ns_steps", KeyType::integer, "5",
                                      "Number of Newton-Schulz iterations.",
                                      {.low = 1, .high = 100}),
    with_choices(
        param<&OptimizerConfig::ns_method>(
            "Muon", "/optimizer/params/ns_method", KeyType::string, R"("gram")",
            "Coefficients of the Newton-Schulz iteration: \"gram\" and \"standard\", Jordan's "
            "(both compute the same polynomial); \"polar_express\", which is specific to zerorun, "
            "those of Polar Express (arXiv 2505.16932), whose singular values are closer to 1. "
            "Computed "
            "in fp32, on GPUs with products in TF32."),
        "gram|standard|polar_express"),
    param<&OptimizerConfig::muon_heads>(
        "Muon", "/optimizer/params/muon_heads", KeyType::free_form, "null",
        "Specific to zerorun: patterns of parameter names (* and ?), and the number of heads of "
        "matching matrices: `{\"*.q_proj.weight\": 12}`. Muon updates the rows of each head as a "
        "matrix of their own. Rows are outputs of torch's nn.Linear; matrices of a Conv1D and of "
        "`zerorun train` have heads along columns: a pattern that matches one is an error. A fused "
        "projection needs the sum of all heads (query, key and value). The first pattern that "
        "matches counts; each has to match a matrix whose rows it divides."),
    gone("/optimizer/params/freeze_step", KeyType::integer,
         "OneBitAdam, OneBitLamb: steps before compression."),
    gone("/optimizer/params/cuda_aware", KeyType::boolean, "1-bit optimizers: use CUDA-aware MPI."),
    gone("/optimizer/params/comm_backend_name", KeyType::string, "1-bit optimizers: transport."),
    gone("/optimizer/params/var_freeze_step", KeyType::integer,
         "ZeroOneAdam: last step of variance updates."),
    gone("/optimizer/params/var_update_scaler", KeyType::integer,
         "ZeroOneAdam: growth of the variance update interval."),
    gone("/optimizer/params/local_step_scaler", KeyType::integer,
         "ZeroOneAdam: growth of the local step interval."),
    gone("/optimizer/params/local_step_clipper", KeyType::integer,
         "ZeroOneAdam: largest local step interval."),
    gone("/optimizer/params/coeff_beta", KeyType::number, "OneBitLamb: decay of the coefficient."),
    gone("/optimizer/params/factor_max", KeyType::number, "OneBitLamb: upper limit of the factor."),
    gone("/optimizer/params/factor_min", KeyType::number, "OneBitLamb: lower limit of the factor."),
    gone("/optimizer/params/factor_threshold", KeyType::number,
         "OneBitLamb: largest change of the factor per step."),
});

}  // namespace

std::span<const KeySpec> optimizer_keys() { return kOptimizerKeys; }

}  // namespace zerorun
