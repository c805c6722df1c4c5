#include <array>

#include "config/keys/key_table.h"

// Batch sizes, data types and the other keys of the top level.

namespace zerorun {

namespace {

constexpr std::string_view kDTypes =
    "fp32|float32|float|torch.float32|bf16|bfloat16|torch.bfloat16|fp16|float16|half|torch.float16";

// In BatchConfig, 0 means "not given".
template <auto Member>
constexpr KeyBinding bind_batch() {
  return bind_if_given<&Config::batch, Member>();
}

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
    {.pointer = "/train_batch_size",
     .type = KeyType::integer,
     .range = kPositive,
     .doc = "Samples per optimizer step over all ranks. train_batch_size = "
            "train_micro_batch_size_per_gpu x gradient_accumulation_steps x ranks; missing values "
            "of the three keys are computed from the others. This key or the next one is required.",
     .nickname = "batch_size",
     .binding = bind_batch<&BatchConfig::train_batch_size>()},
    {.pointer = "/train_micro_batch_size_per_gpu",
     .type = KeyType::integer,
     .range = kPositive,
     .doc = "Samples per rank in one micro-step (forward and backward pass).",
     .nickname = "micro_batch_size",
     .binding = bind_batch<&BatchConfig::micro_batch_size>()},
    {.pointer = "/gradient_accumulation_steps",
     .type = KeyType::integer,
     .range = kPositive,
     .doc = "Micro-steps whose gradients are summed before one optimizer step. Default: computed "
            "from the other two batch keys, else 1.",
     .nickname = "accumulation_steps",
     .binding = bind_batch<&BatchConfig::accumulation_steps>()},
    pytorch("/managed_gradient_accumulation", KeyType::boolean, "true",
            "true: the engine counts micro-steps, and step() updates after the last one. false: "
            "the program counts them, and every step() updates."),
    {.pointer = "/gradient_clipping",
     .type = KeyType::number,
     .fallback = "1",
     .range = kNonNegative,
     .doc = "Maximum global L2 norm of the averaged gradient; a larger gradient is scaled down to "
            "it. 0: no clipping. On by default, as in DeepSpeed 0.19.",
     .nickname = "max_grad_norm",
     .refuses_null = true,
     .binding = bind_member<&Config::gradient_clipping>()},
    key("/steps_per_print", KeyType::integer | KeyType::infinity, "null",
        "Optimizer steps between two progress lines of rank 0; \"inf\": no lines. Not given: the "
        "program decides.",
        kStepsPerPrint, kPositive),
    key("/wall_clock_breakdown", KeyType::boolean, "false",
        "Adds milliseconds of forward, backward, communication and optimizer to the progress line.",
        bind_member<&Config::wall_clock_breakdown>()),
    {.pointer = "/communication_data_type",
     .type = KeyType::string,
     .choices = "fp32|bf16|fp16",
     .doc = "dtype in which gradients are communicated. Not given: the parameters' dtype; the sums "
            "that hosts of CPU ranks send to each other are in fp32. Given: those sums are rounded "
            "to this dtype, too. CPU ranks of one host always add in fp32.",
     .binding = bind_member<&Config::precision, &PrecisionConfig::communication_dtype>()},
    with_gate(
        "/sequence_parallel_size",
        with_choices(pytorch("/seq_parallel_communication_data_type", KeyType::string, R"("fp32")",
                             "dtype in which gradients are communicated if ranks share sequences."),
                     "fp32|bf16|fp16")),
    with_range(pytorch("/sequence_parallel_size", KeyType::integer, "1",
                       "Number of ranks that share one sequence (Ulysses)."),
               kPositive),
    with_range(
        pytorch("/data_parallel_size", KeyType::integer, "null",
                "Number of ranks, or of groups of ranks that share a sequence, that train on "
                "different data. Must equal the actual number; any other value is an error."),
        kPositive),
    key("/prescale_gradients", KeyType::boolean, "false",
        "Divides gradients by the number of ranks before they are summed, instead of after.",
        bind_member<&Config::precision, &PrecisionConfig::prescale_gradients>()),
    key("/gradient_predivide_factor", KeyType::number, "1",
        "Gradients are divided by this factor before they are summed over ranks, and by ranks / "
        "factor afterwards. With prescale_gradients all of the division comes before the sum.",
        bind_member<&Config::precision, &PrecisionConfig::gradient_predivide_factor>(), kAboveZero),
    {.pointer = "/gradient_allreduce_op",
     .type = KeyType::string,
     .fallback = R"("mean")",
     .choices = "mean|sum",
     .doc = "Whether the gradients of the ranks are averaged or summed.",
     .binding = bind_member<&Config::precision, &PrecisionConfig::gradient_reduction>()},
    removed("/sparse_gradients", KeyType::boolean, "false",
            "Communicates embedding gradients as indices and values."),
    no_effect("/disable_allgather", KeyType::boolean, "false",
              "Has no meaning in DeepSpeed either.", "DeepSpeed does not read it"),
    no_effect("/dump_state", KeyType::boolean, "false", "Prints the configuration at start.",
              "`zerorun config show` prints it"),
    with_range(no_effect("/vocabulary_size", KeyType::integer, "null",
                         "Warns when it is not a multiple of 8.",
                         "matrix kernels here do not need a multiple of 8"),
               kPositive),
    no_effect("/memory_breakdown", KeyType::boolean, "false",
              "Logs memory use around each phase of a step.",
              "progress lines and metrics have the memory of each rank"),
    removed("/graph_harvesting", KeyType::boolean, "false",
            "Computes the gradient norm in a CUDA graph."),
    always_on(
        "/zero_allow_untested_optimizer", "false",
        "Allows optimizers that DeepSpeed has not tested with ZeRO; zerorun has no such list."),
    no_effect("/zero_force_ds_cpu_optimizer", KeyType::boolean, "true",
              "Requires DeepSpeed's own CPU optimizer with offloading.",
              "every optimizer here is zerorun's own"),
    {.pointer = "/dataloader_drop_last",
     .type = KeyType::boolean,
     .fallback = "false",
     .doc = "Drops the last incomplete batch of an epoch of initialize(training_data=); `train` "
            "makes full batches only."},
    pytorch("/use_data_before_expert_parallelism", KeyType::boolean, "false",
            "true: neighbouring ranks hold the same experts. false: neighbouring ranks together "
            "hold all experts of a layer."),
    with_choices(no_effect("/log_level", KeyType::string, "null", "Level of DeepSpeed's logger.",
                           "zerorun prints few lines and no level selects among them"),
                 "debug|info|warning|error|critical"),
    no_effect("/disable_python_gc", KeyType::boolean, "false",
              "Runs Python's garbage collector only between steps.",
              "zerorun does not change when Python's garbage collector runs"),

    block("/data_types", "Data types that the sections `bf16` and `fp16` do not determine."),
    {.pointer = "/data_types/grad_accum_dtype",
     .type = KeyType::string,
     .choices = kDTypes,
     .doc = "dtype of the reduced and accumulated gradient. Not given: the parameters' dtype, or "
            "fp32 when gradients are accumulated over several micro-steps.",
     .binding = bind_member<&Config::precision, &PrecisionConfig::grad_accum_dtype>()},
    {.pointer = "/data_types/param_dtype",
     .type = KeyType::string,
     .choices = kDTypes,
     .doc = "dtype of the parameters. bf16.enabled and fp16.enabled determine it; this key must "
            "agree with them."},
    {.pointer = "/data_types/buffer_dtype",
     .type = KeyType::string,
     .choices = kDTypes,
     .doc = "dtype of a PyTorch module's floating-point buffers. Not given: buffers keep their "
            "dtype."},
    key("/data_types/keep_in_fp32_modules", KeyType::string | KeyType::strings, R"("auto")",
        "Name patterns (`*` matches any text) of buffers that stay fp32 in 16-bit training. "
        "\"auto\": the modules that a Hugging Face model names. Parameters are not affected: "
        "`bf16` and `fp16` determine their dtype."),
});

}  // namespace

std::span<const KeySpec> core_keys() { return kCoreKeys; }

}  // namespace zerorun
