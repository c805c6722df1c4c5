#include <fmt/format.h>

#include "config/keys/key_rows.h"

namespace zerorun::keys {

namespace {

template <auto Member>
constexpr KeyBinding optimizer = bind<&Config::optimizer, Member>;

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

constexpr std::string_view kWarmupLr = "WarmupLR|WarmupDecayLR";
constexpr std::string_view kWarmup = "WarmupLR|WarmupDecayLR|WarmupCosineLR";
constexpr std::string_view kCosine = "WarmupCosineLR";
constexpr std::string_view kRangeTest = "LRRangeTest";
constexpr std::string_view kOneCycle = "OneCycle";
constexpr std::string_view kWsd = "WSD";

template <auto Member>
constexpr KeyBinding schedule = bind<&Config::scheduler, Member>;
template <auto Member>
constexpr KeyBinding schedule_if_given = bind_if_given<&Config::scheduler, Member>;
template <auto Member>
constexpr KeyBinding range_test = bind<&Config::scheduler, &SchedulerConfig::range_test, Member>;
template <auto Member>
constexpr KeyBinding one_cycle = bind<&Config::scheduler, &SchedulerConfig::one_cycle, Member>;

constexpr Values kPerGroup = number | numbers;

constexpr auto kOptimizerKeys = std::to_array<KeySpec>({
    block("/optimizer", "The optimizer and its hyperparameters."),
    key("type", string.one_of("Adam|AdamW|SGD|Adagrad|Lion|Lamb|Muon|Adam8bit|AdamW8bit"),
        R"("AdamW")",
        "Name of the optimizer. As in DeepSpeed, AdamW decouples weight decay from the gradient, "
        "and so does Adam unless params.adam_w_mode is false. Adam8bit and AdamW8bit are specific "
        "to zerorun: block-wise 8-bit states.",
        optimizer<&OptimizerConfig::type>,
        {.later = "OneBitAdam|OneBitLamb|ZeroOneAdam|MuAdam|MuAdamW|MuSGD|Adafactor|SparseAdam|"
                  "LBFGS|NorMuon",
         .torch_classes = "Adamax|NAdam|RAdam|Adadelta|ASGD|RMSprop|Rprop",
         .nickname = "name"}),
    no_effect("legacy_fusion", boolean, "false",
              "Selects how DeepSpeed flattens fp16 groups without ZeRO.",
              "buffers are always flat"),
    block("/optimizer/params", "Hyperparameters of the optimizer."),
    key("lr", number.from(0, kMaxFloat), "0.001",
        "Learning rate. Muon: for all parameters, unless muon_lr or adam_lr is given.",
        optimizer<&OptimizerConfig::lr>,
        {.nickname = "learning_rate", .type_fallbacks = "Adagrad=0.01|Muon=0.02"}),
    key("betas", betas, "[0.9,0.999]",
        "Decay rates of the running means of the gradient and of its square. Muon: betas and eps "
        "apply to the parameters that AdamW updates.",
        kBetas, {.nickname = "beta1", .used_by = kWithBetas, .type_fallbacks = "Muon=[0.9,0.95]"}),
    key("eps", number.from(0, kMaxFloat), "1e-08",
        "Added to the square root of the mean square, for numerical stability.",
        optimizer<&OptimizerConfig::eps>,
        {.nickname = "epsilon",
         .used_by = "Adam|AdamW|Adam8bit|AdamW8bit|Adagrad|Lamb|Muon",
         .type_fallbacks = "Adagrad=1e-10|Muon=1e-10"}),
    key("weight_decay", number.from(0, kMaxFloat), "0",
        "Weight decay. AdamW, and Adam unless adam_w_mode is false: decoupled from the gradient.",
        optimizer<&OptimizerConfig::weight_decay>),
    key("bias_correction", boolean, "true",
        "Corrects the bias of the running means that comes from their initial value, zero.",
        optimizer<&OptimizerConfig::bias_correction>,
        {.used_by = "Adam|AdamW|Adam8bit|AdamW8bit|Lamb"}),
    key("adam_w_mode", boolean, "true",
        "true: decoupled weight decay (AdamW), for type Adam too, as in DeepSpeed. false: Adam "
        "adds weight decay to the gradient (L2); AdamW decouples it all the same.",
        optimizer<&OptimizerConfig::adam_w_mode>, {.used_by = kAdam}),
    key("torch_adam", boolean, "false",
        "Selects PyTorch's Adam in DeepSpeed. Here the fused kernel computes the same formula; the "
        "key only changes the default weight_decay of AdamW (and of Adam with adam_w_mode) to "
        "PyTorch's 0.01."),
    not_yet("amsgrad", boolean, "false", "Uses the maximum of past mean squares."),
    always_on("fp32_optimizer_states", "true", "Keeps the running means in fp32."),
    always_on("set_grad_none", "true", "Does not spend a pass on setting gradients to zero."),
    no_effect("fused", boolean, "null", "Uses PyTorch's fused kernel.", kFused),
    no_effect("foreach", boolean, "null", "Uses PyTorch's multi-tensor kernel.", kFused),
    removed("max_grad_norm", number, "null",
            "Maximum norm of the gradient; DeepSpeed rejects this key, too.",
            "use /gradient_clipping"),
    key("momentum", number.from(0, 1), "0", "Decay rate of the running mean of the gradient.",
        optimizer<&OptimizerConfig::momentum>,
        {.used_by = "SGD|Muon", .type_fallbacks = "Muon=0.95"}),
    key("dampening", number, "0", "Fraction of the gradient that is not added to the running mean.",
        optimizer<&OptimizerConfig::dampening>, {.used_by = "SGD"}),
    key("nesterov", boolean, "false", "Uses Nesterov momentum.",
        optimizer<&OptimizerConfig::nesterov>,
        {.used_by = "SGD|Muon", .type_fallbacks = "Muon=true"}),
    key("lr_decay", number.from(0), "0",
        "Divides the learning rate by 1 + lr_decay x (number of previous steps).",
        optimizer<&OptimizerConfig::lr_decay>, {.used_by = "Adagrad"}),
    key("eps_inside_sqrt", boolean, "false", "Adds eps before taking the square root, not after.",
        optimizer<&OptimizerConfig::eps_inside_sqrt>, {.used_by = "Lamb"}),
    key("max_coeff", number.from(0, kMaxFloat), "10", "Upper limit of the trust ratio.",
        optimizer<&OptimizerConfig::max_coeff>, {.used_by = "Lamb"}),
    key("min_coeff", number.from(0, kMaxFloat), "0.01", "Lower limit of the trust ratio.",
        optimizer<&OptimizerConfig::min_coeff>, {.used_by = "Lamb"}),
    key("muon_lr", number.from(0, kMaxFloat), "0.02",
        "Learning rate of the matrices, which Muon updates. Not given: lr.",
        optimizer<&OptimizerConfig::muon_lr>, {.used_by = "Muon"}),
    key("adam_lr", number.from(0, kMaxFloat), "0.0003",
        "Learning rate of the other parameters, which AdamW updates. Not given: lr, if that is "
        "given.",
        optimizer<&OptimizerConfig::adam_lr>, {.used_by = "Muon"}),
    key("ns_steps", integer.from(1, 100), "5", "Number of Newton-Schulz iterations.",
        optimizer<&OptimizerConfig::ns_steps>, {.used_by = "Muon"}),
    key("ns_method", string.one_of("gram|standard|polar_express"), R"("gram")",
        "Coefficients of the Newton-Schulz iteration: \"gram\" and \"standard\", Jordan's (both "
        "compute the same polynomial); \"polar_express\", which is specific to zerorun, those of "
        "Polar Express (arXiv 2505.16932), whose singular values are closer to 1. Computed in "
        "fp32, on GPUs with products in TF32.",
        optimizer<&OptimizerConfig::ns_method>, {.used_by = "Muon"}),
    key("muon_heads", free_form, "null",
        "Specific to zerorun: patterns of parameter names (* and ?), and the number of heads of "
        "matching matrices: `{\"*.q_proj.weight\": 12}`. Muon updates the rows of each head as a "
        "matrix of their own. Rows are outputs of torch's nn.Linear; matrices of a Conv1D and of "
        "`zerorun train` have heads along columns: a pattern that matches one is an error. A fused "
        "projection needs the sum of all heads (query, key and value). The first pattern that "
        "matches counts; each has to match a matrix whose rows it divides.",
        optimizer<&OptimizerConfig::muon_heads>, {.used_by = "Muon"}),
    removed("freeze_step", integer, "null", "OneBitAdam, OneBitLamb: steps before compression.",
            "remove it"),
    removed("cuda_aware", boolean, "null", "1-bit optimizers: use CUDA-aware MPI.", "remove it"),
    removed("comm_backend_name", string, "null", "1-bit optimizers: transport.", "remove it"),
    removed("var_freeze_step", integer, "null", "ZeroOneAdam: last step of variance updates.",
            "remove it"),
    removed("var_update_scaler", integer, "null",
            "ZeroOneAdam: growth of the variance update interval.", "remove it"),
    removed("local_step_scaler", integer, "null", "ZeroOneAdam: growth of the local step interval.",
            "remove it"),
    removed("local_step_clipper", integer, "null", "ZeroOneAdam: largest local step interval.",
            "remove it"),
    removed("coeff_beta", number, "null", "OneBitLamb: decay of the coefficient.", "remove it"),
    removed("factor_max", number, "null", "OneBitLamb: upper limit of the factor.", "remove it"),
    removed("factor_min", number, "null", "OneBitLamb: lower limit of the factor.", "remove it"),
    removed("factor_threshold", number, "null",
            "OneBitLamb: largest change of the factor per step.", "remove it"),

    block("/scheduler",
          "Learning rate schedule. It advances with each applied step, not with skipped steps."),
    key("type",
        string.one_of("WarmupLR|WarmupDecayLR|WarmupCosineLR|OneCycle|LRRangeTest|cosine|linear|"
                      "constant|WSD"),
        "null",
        "Name of the schedule. The first five are DeepSpeed's, with its formulas. The others have "
        "the formulas of Hugging Face: a linear warm-up to the group's learning rate, then half a "
        "cosine (cosine), a straight line (linear), a constant rate (constant), or a constant rate "
        "and a decay at the end (WSD). Not given: learning rates do not change.",
        schedule_if_given<&SchedulerConfig::type>,
        {.torch_classes = "LambdaLR|MultiplicativeLR|StepLR|MultiStepLR|ConstantLR|LinearLR|"
                          "ExponentialLR|PolynomialLR|CosineAnnealingLR|"
                          "CosineAnnealingWarmRestarts|CyclicLR|OneCycleLR|ReduceLROnPlateau",
         .nickname = "name"}),
    block("/scheduler/params",
          "Parameters of the schedule. An array has one value per parameter group."),
    key("warmup_min_lr", kPerGroup.from(0), "0", "Learning rate at the start of the warm-up.",
        schedule<&SchedulerConfig::warmup_min_lr>, {.used_by = kWarmupLr}),
    key("warmup_max_lr", kPerGroup.from(0), "null",
        "Learning rate at the end of the warm-up. Not given: that of the group. auto: that of the "
        "optimizer.",
        schedule<&SchedulerConfig::warmup_max_lr>,
        {.used_by = kWarmupLr, .type_fallbacks = "WarmupDecayLR=0.001"}),
    key("warmup_num_steps", integer.from(0), "1000",
        "Number of warm-up steps. DeepSpeed's types use at least 2. auto: the program sets it.",
        schedule<&SchedulerConfig::warmup_num_steps>,
        {.used_by = "WarmupLR|WarmupDecayLR|WarmupCosineLR|cosine|linear|constant|WSD",
         .type_fallbacks = "cosine=0|linear=0|constant=0|WSD=0",
         .auto_waits = true}),
    key("warmup_type", string.one_of("log|linear"), R"("log")", "Shape of the warm-up.",
        schedule<&SchedulerConfig::warmup_type>, {.used_by = kWarmup}),
    key("total_num_steps", integer.from(1), "null",
        "Number of steps until the lowest learning rate is reached. auto: the number of steps of "
        "the run.",
        schedule_if_given<&SchedulerConfig::total_num_steps>,
        {.used_by = "WarmupDecayLR|WarmupCosineLR|cosine|linear|WSD",
         .is_required = true,
         .auto_waits = true}),
    key("warmup_min_ratio", number.from(0), "0",
        "Initial learning rate of the warm-up, as a fraction of the group's learning rate.",
        schedule<&SchedulerConfig::warmup_min_ratio>, {.used_by = kCosine}),
    key("cos_min_ratio", number.from(0), "0.0001",
        "Final learning rate, as a fraction of the group's learning rate.",
        schedule<&SchedulerConfig::cos_min_ratio>, {.used_by = kCosine}),
    key("min_lr_ratio", number.from(0, 1), "0",
        "Final learning rate, as a fraction of the group's learning rate.",
        schedule<&SchedulerConfig::min_lr_ratio>, {.used_by = "cosine|linear|WSD"}),
    key("decay_num_steps", integer.from(1), "null", "Number of steps of the decay at the end.",
        schedule_if_given<&SchedulerConfig::decay_num_steps>,
        {.used_by = kWsd, .is_required = true}),
    key("decay_type", string.one_of("linear|cosine|1-sqrt"), R"("cosine")",
        "Shape of the decay at the end.", schedule<&SchedulerConfig::decay_type>,
        {.used_by = kWsd}),
    key("last_batch_iteration", integer.from(-1), "-1",
        "Step to continue from; -1: start at the beginning.",
        schedule<&SchedulerConfig::last_batch_iteration>,
        {.used_by = "WarmupLR|WarmupDecayLR|WarmupCosineLR|OneCycle|LRRangeTest"}),

    key("lr_range_test_min_lr", kPerGroup.from(0), "0.001", "Initial learning rate.",
        range_test<&LrRangeTestConfig::min_lr>, {.used_by = kRangeTest}),
    key("lr_range_test_step_size", integer.from(1), "2000",
        "Number of steps in which the learning rate grows by lr_range_test_step_rate times its "
        "initial value.",
        range_test<&LrRangeTestConfig::step_size>, {.used_by = kRangeTest}),
    key("lr_range_test_step_rate", number.from(0), "1",
        "Increase per lr_range_test_step_size steps, relative to the initial learning rate.",
        range_test<&LrRangeTestConfig::step_rate>, {.used_by = kRangeTest}),
    key("lr_range_test_staircase", boolean, "false",
        "Increases the learning rate in stairs instead of continuously.",
        range_test<&LrRangeTestConfig::staircase>, {.used_by = kRangeTest}),

    key("cycle_min_lr", kPerGroup.from(0), "null", "Lowest learning rate of the cycle.",
        one_cycle<&OneCycleConfig::min_lr>, {.used_by = kOneCycle, .is_required = true}),
    key("cycle_max_lr", kPerGroup.from(0), "null", "Highest learning rate of the cycle.",
        one_cycle<&OneCycleConfig::max_lr>, {.used_by = kOneCycle, .is_required = true}),
    key("decay_lr_rate", number.from(0), "0", "Decay rate of the learning rate after the cycle.",
        one_cycle<&OneCycleConfig::decay_lr_rate>, {.used_by = kOneCycle}),
    key("cycle_first_step_size", integer.from(1), "2000",
        "Number of steps of the first half, in which the learning rate rises.",
        one_cycle<&OneCycleConfig::first_step_size>, {.used_by = kOneCycle}),
    key("cycle_second_step_size", integer.from(0), "null",
        "Number of steps of the second half, in which it falls. Not given: as many as in the first "
        "half.",
        one_cycle<&OneCycleConfig::second_step_size>, {.used_by = kOneCycle}),
    key("cycle_first_stair_count", integer.from(0), "0",
        "Number of stairs of the first half; 0: continuous.",
        one_cycle<&OneCycleConfig::first_stair_count>, {.used_by = kOneCycle}),
    key("cycle_second_stair_count", integer.from(0), "null",
        "Number of stairs of the second half. Not given: as many as in the first half.",
        one_cycle<&OneCycleConfig::second_stair_count>, {.used_by = kOneCycle}),
    key("decay_step_size", integer.from(0), "0",
        "Number of steps between two decays after the cycle; 0: no decay.",
        one_cycle<&OneCycleConfig::decay_step_size>, {.used_by = kOneCycle}),
    key("cycle_momentum", boolean, "true",
        "Also cycles beta1, inversely to the learning rate, and sets beta2 to 0.99. Only for "
        "optimizers with betas.",
        one_cycle<&OneCycleConfig::cycle_momentum>, {.used_by = kOneCycle}),
    key("cycle_min_mom", kPerGroup.from(0, 1), "0.8", "Minimum of beta1.",
        one_cycle<&OneCycleConfig::min_momentum>, {.used_by = kOneCycle}),
    key("cycle_max_mom", kPerGroup.from(0, 1), "0.9", "Maximum of beta1.",
        one_cycle<&OneCycleConfig::max_momentum>, {.used_by = kOneCycle}),
    key("decay_mom_rate", number.from(0), "0", "Growth rate of beta1 after the cycle.",
        one_cycle<&OneCycleConfig::decay_momentum_rate>, {.used_by = kOneCycle}),
});

}  // namespace

std::span<const KeySpec> optimizer_keys() { return kOptimizerKeys; }

}  // namespace zerorun::keys
