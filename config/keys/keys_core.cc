#include "config/keys/key_rows.h"

// Batch sizes, data types and the other keys of the top level.

namespace zerorun::keys {

namespace {

constexpr std::string_view kDTypes =
    "fp32|float32|float|torch.float32|bf16|bfloat16|torch.bfloat16|fp16|float16|half|torch.float16";

// In BatchConfig, 0 means "not given".
template <auto Member>
constexpr KeyBinding batch = bind_if_given<&Config::batch, Member>;

constexpr KeyBinding kStepsPerPrint{
    .set =
        [](Config& config, const JsonNode& value) {
          if (value.kind == JsonNode::Kind::null) return;
          // Infinity: a number of steps that no job reaches.
          config.steps_per_print = as_integer(value).value_or(std::numeric_limits<int64_t>::max());
        },
    .get = [](const Config& config) -> std::string {
      if (!config.steps_per_print) return "null";
      if (*config.steps_per_print == std::numeric_limits<int64_t>::max()) return R"("inf")";
      return write_value(*config.steps_per_print);
    },
};

constexpr auto kCoreKeys = std::to_array<KeySpec>({
    key("/train_batch_size", integer.from(1), "null",
        "Samples per optimizer step over all ranks. train_batch_size = "
        "train_micro_batch_size_per_gpu x gradient_accumulation_steps x ranks; missing values of "
        "the three keys are computed from the others. This key or the next one is required.",
        batch<&BatchConfig::train_batch_size>, {.nickname = "batch_size"}),
    key("/train_micro_batch_size_per_gpu", integer.from(1), "null",
        "Samples per rank in one micro-step (forward and backward pass).",
        batch<&BatchConfig::micro_batch_size>, {.nickname = "micro_batch_size"}),
    key("/gradient_accumulation_steps", integer.from(1), "null",
        "Micro-steps whose gradients are summed before one optimizer step. Default: computed from "
        "the other two batch keys, else 1.",
        batch<&BatchConfig::accumulation_steps>, {.nickname = "accumulation_steps"}),
    pytorch("/managed_gradient_accumulation", boolean, "true",
            "true: the engine counts micro-steps, and step() updates after the last one. false: "
            "the program counts them, and every step() updates."),
    key("/gradient_clipping", number.from(0), "1",
        "Maximum global L2 norm of the averaged gradient; a larger gradient is scaled down to it. "
        "0: no clipping. On by default, as in DeepSpeed 0.19.",
        bind<&Config::gradient_clipping>, {.nickname = "max_grad_norm", .refuses_null = true}),
    key("/steps_per_print", (integer | infinity).from(1), "null",
        "Optimizer steps between two progress lines of rank 0; \"inf\": no lines. Not given: the "
        "program decides.",
        kStepsPerPrint),
    key("/wall_clock_breakdown", boolean, "false",
        "Adds milliseconds of forward, backward, communication and optimizer to the progress line.",
        bind<&Config::wall_clock_breakdown>),
    key("/communication_data_type", string.one_of("fp32|bf16|fp16"), "null",
        "dtype in which gradients are communicated. Not given: the parameters' dtype; the sums "
        "that hosts of CPU ranks send to each other are in fp32. Given: those sums are rounded to "
        "this dtype, too. CPU ranks of one host always add in fp32.",
        precision<&PrecisionConfig::communication_dtype>),
    pytorch("/seq_parallel_communication_data_type", string.one_of("fp32|bf16|fp16"), R"("fp32")",
            "dtype in which gradients are communicated if ranks share sequences.",
            {.gate = "/sequence_parallel_size"}),
    pytorch("/sequence_parallel_size", integer.from(1), "1",
            "Number of ranks that share one sequence (Ulysses)."),
    pytorch("/data_parallel_size", integer.from(1), "null",
            "Number of ranks, or of groups of ranks that share a sequence, that train on different "
            "data. Must equal the actual number; any other value is an error."),
    key("/prescale_gradients", boolean, "false",
        "Divides gradients by the number of ranks before they are summed, instead of after.",
        precision<&PrecisionConfig::prescale_gradients>),
    key("/gradient_predivide_factor", number.above(0), "1",
        "Gradients are divided by this factor before they are summed over ranks, and by ranks / "
        "factor afterwards. With prescale_gradients all of the division comes before the sum.",
        precision<&PrecisionConfig::gradient_predivide_factor>),
    key("/gradient_allreduce_op", string.one_of("mean|sum"), R"("mean")",
        "Whether the gradients of the ranks are averaged or summed.",
        precision<&PrecisionConfig::gradient_reduction>),
    removed("/sparse_gradients", boolean, "false",
            "Communicates embedding gradients as indices and values."),
    no_effect("/disable_allgather", boolean, "false", "Has no meaning in DeepSpeed either.",
              "DeepSpeed does not read it"),
    no_effect("/dump_state", boolean, "false", "Prints the configuration at start.",
              "`zerorun config show` prints it"),
    no_effect("/vocabulary_size", integer.from(1), "null", "Warns when it is not a multiple of 8.",
              "matrix kernels here do not need a multiple of 8"),
    no_effect("/memory_breakdown", boolean, "false", "Logs memory use around each phase of a step.",
              "progress lines and metrics have the memory of each rank"),
    removed("/graph_harvesting", boolean, "false", "Computes the gradient norm in a CUDA graph."),
    always_on(
        "/zero_allow_untested_optimizer", "false",
        "Allows optimizers that DeepSpeed has not tested with ZeRO; zerorun has no such list."),
    no_effect("/zero_force_ds_cpu_optimizer", boolean, "true",
              "Requires DeepSpeed's own CPU optimizer with offloading.",
              "every optimizer here is zerorun's own"),
    key("/dataloader_drop_last", boolean, "false",
        "Drops the last incomplete batch of an epoch of initialize(training_data=); `train` makes "
        "full batches only."),
    pytorch("/use_data_before_expert_parallelism", boolean, "false",
            "true: neighbouring ranks hold the same experts. false: neighbouring ranks together "
            "hold all experts of a layer."),
    no_effect("/log_level", string.one_of("debug|info|warning|error|critical"), "null",
              "Level of DeepSpeed's logger.",
              "zerorun prints few lines and no level selects among them"),
    no_effect("/disable_python_gc", boolean, "false",
              "Runs Python's garbage collector only between steps.",
              "zerorun does not change when Python's garbage collector runs"),

    block("/data_types", "Data types that the sections `bf16` and `fp16` do not determine."),
    key("grad_accum_dtype", string.one_of(kDTypes), "null",
        "dtype of the reduced and accumulated gradient. Not given: the parameters' dtype, or fp32 "
        "when gradients are accumulated over several micro-steps.",
        precision<&PrecisionConfig::grad_accum_dtype>),
    key("param_dtype", string.one_of(kDTypes), "null",
        "dtype of the parameters. bf16.enabled and fp16.enabled determine it; this key must agree "
        "with them."),
    key("buffer_dtype", string.one_of(kDTypes), "null",
        "dtype of a PyTorch module's floating-point buffers. Not given: buffers keep their dtype."),
    key("keep_in_fp32_modules", string | strings, R"("auto")",
        "Name patterns (`*` matches any text) of buffers that stay fp32 in 16-bit training. "
        "\"auto\": the modules that a Hugging Face model names. Parameters are not affected: "
        "`bf16` and `fp16` determine their dtype."),
});

}  // namespace

std::span<const KeySpec> core_keys() { return kCoreKeys; }

namespace {

// `enabled` of the section for a dtype. If none is enabled, parameters are fp32.
template <DType dtype>
constexpr KeyBinding param_dtype = {
    .set =
        [](Config& config, const JsonNode& value) {
          if (value.boolean) config.precision.param_dtype = dtype;
        },
    .get = [](const Config& config) { return write_value(config.precision.param_dtype == dtype); },
};

template <auto Member>
constexpr KeyBinding loss_scaler = bind<&Config::precision, &PrecisionConfig::loss_scaler, Member>;

// Keys of fp16 and bf16 without binding: config/derive.cc computes the members of Config for the
// enabled dtype.
constexpr auto kPrecisionKeys = std::to_array<KeySpec>({
    block("/bf16", "Training in bfloat16.", "enabled", {.alias = "bfloat16"}),
    key("enabled", boolean, "false", "Keeps parameters and gradients in bf16 instead of fp32.",
        param_dtype<DType::bf16>),
    no_effect("immediate_grad_update", boolean, "false",
              "Accumulates gradients in the hook of each parameter.",
              "a bucket is reduced as soon as its gradients are complete"),
    key("check_grad_overflow", boolean, "true", "Skips a step if its gradient is not finite.",
        precision<&PrecisionConfig::check_grad_overflow>),
    key("bf16_master_weights_and_grads", boolean, "false",
        "Keeps no fp32 master parameters: the optimizer updates the bf16 parameters with "
        "stochastic rounding."),
    key("bf16_optimizer_states", boolean, "false",
        "Keeps optimizer states in bf16 with stochastic rounding; requires "
        "bf16_master_weights_and_grads."),

    block("/fp16", "Training in float16 with loss scaling.", "enabled"),
    key("enabled", boolean, "false",
        "Keeps parameters and gradients in fp16 instead of fp32. The loss is scaled.",
        param_dtype<DType::fp16>),
    key("auto_cast", boolean, "false", "Casts the floating-point inputs of the model to fp16.",
        precision<&PrecisionConfig::auto_cast_inputs>),
    key("loss_scale", number.from(0), "0", "Constant loss scale; 0: dynamic.",
        loss_scaler<&LossScalerOptions::static_scale>),
    key("initial_scale_power", integer.from(0, 1000), "16",
        "Initial dynamic loss scale, as a power of two: 16 means 65536.",
        loss_scaler<&LossScalerOptions::initial_scale_power>),
    key("loss_scale_window", integer.from(1), "1000",
        "Number of steps without overflow after which the loss scale doubles.",
        loss_scaler<&LossScalerOptions::window>),
    key("hysteresis", integer.from(1), "2",
        "Number of overflows after which the loss scale is halved.",
        loss_scaler<&LossScalerOptions::hysteresis>),
    key("consecutive_hysteresis", boolean, "false",
        "Restarts counting the overflows of hysteresis after every step without overflow, not only "
        "when the scale doubles.",
        loss_scaler<&LossScalerOptions::consecutive_hysteresis>),
    key("min_loss_scale", number.from(0), "1",
        "Minimum dynamic loss scale, above 0; an overflow at the minimum ends the run.",
        loss_scaler<&LossScalerOptions::min_scale>),
    key("fp16_master_weights_and_grads", boolean, "false",
        "Keeps no fp32 master parameters: the optimizer updates the fp16 parameters with "
        "stochastic rounding."),

    removed("/amp", free_form, "null", "NVIDIA apex mixed precision.", "use bf16"),

    block("/torch_autocast", "PyTorch's autocast around the forward pass.", "enabled"),
    pytorch("enabled", boolean, "false",
            "Runs the engine's forward pass under autocast; parameters stay fp32."),
    pytorch("dtype", string.one_of("bfloat16|bf16|torch.bfloat16|float16|fp16|half|torch.float16"),
            R"("bfloat16")",
            "dtype of autocast. With float16 the loss is scaled as torch.amp.GradScaler does."),
    no_effect("lower_precision_safe_modules", strings, "null",
              "Modules whose parameters are communicated in low precision.",
              "communication_data_type determines the dtype; fp32 loses no precision"),
});

}  // namespace

std::span<const KeySpec> precision_keys() { return kPrecisionKeys; }

}  // namespace zerorun::keys
