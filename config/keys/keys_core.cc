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
  KeyBinding binding = bind_member<&Config::batch, Member>();
  binding.get = [](const Config& config) -> std::string {
    const int64_t value = config.batch.*Member;
    return value == 0 ? "null" : write_value(value);
  };
  return binding;
}

constexpr KeyBinding kStepsPerPrint{
    .set =
        [](Config& config, const JsonNode& value) {
          if (value.kind == JsonNode::Kind::null) return;
          // Never: a number of steps that no job reaches.
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
     .doc = "Samples per optimizer step over all ranks. Of the three batch keys, what is not given "
            "follows from train_batch_size = train_micro_batch_size_per_gpu x "
            "gradient_accumulation_steps x ranks; this one or the next is needed.",
     .nickname = "batch_size",
     .binding = bind_batch<&BatchConfig::train_batch_size>()},
    {.pointer = "/train_micro_batch_size_per_gpu",
     .type = KeyType::integer,
     .range = kPositive,
     .doc = "Samples per rank in one forward and backward pass.",
     .nickname = "micro_batch_size",
     .binding = bind_batch<&BatchConfig::micro_batch_size>()},
    {.pointer = "/gradient_accumulation_steps",
     .type = KeyType::integer,
     .range = kPositive,
     .doc = "Micro-steps whose gradients are summed before one optimizer step; 1 when it does not "
            "follow from the other two.",
     .nickname = "accumulation_steps",
     .binding = bind_batch<&BatchConfig::accumulation_steps>()},
    pytorch("/managed_gradient_accumulation", KeyType::boolean, "true",
            "false: every step() ends a batch, the program counts micro-steps itself."),
    {.pointer = "/gradient_clipping",
     .type = KeyType::number,
     .fallback = "1",
     .range = kNonNegative,
     .doc = "Largest global L2 norm of the averaged gradient; larger ones are scaled down to it. "
            "0 turns clipping off. On by default, as in DeepSpeed 0.19.",
     .nickname = "max_grad_norm",
     .refuses_null = true,
     .binding = bind_member<&Config::gradient_clipping>()},
    {.pointer = "/steps_per_print",
     .type = KeyType::integer | KeyType::infinity,
     .range = kPositive,
     .doc = "Optimizer steps between two progress lines of rank 0; \"inf\" prints none. Not "
            "given: the program decides.",
     .binding = kStepsPerPrint},
    {.pointer = "/wall_clock_breakdown",
     .type = KeyType::boolean,
     .fallback = "false",
     .doc = "Adds milliseconds of forward, backward, communication and optimizer to the progress "
            "line.",
     .binding = bind_member<&Config::wall_clock_breakdown>()},
    {.pointer = "/communication_data_type",
     .type = KeyType::string,
     .choices = "fp32|bf16|fp16",
     .doc = "dtype of gradients on the wire. Not given: the parameters' dtype, and fp32 for the "
            "sum of "
            "a host's CPU ranks on its way to other hosts. Given, that is rounded to it as well. "
            "Ranks "
            "of one host are summed in fp32 in any case.",
     .binding = bind_member<&Config::precision, &PrecisionConfig::communication_dtype>()},
    with_gate(
        "/sequence_parallel_size",
        with_choices(pytorch("/seq_parallel_communication_data_type", KeyType::string, R"("fp32")",
                             "dtype of gradients on the wire where ranks share sequences."),
                     "fp32|bf16|fp16")),
    with_range(pytorch("/sequence_parallel_size", KeyType::integer, "1",
                       "Ranks that share one sequence (Ulysses)."),
               kPositive),
    with_range(pytorch("/data_parallel_size", KeyType::integer, "null",
                       "Ranks, or groups of them that share a sequence, that take different data: "
                       "all there are, any other number is an error."),
               kPositive),
    {.pointer = "/prescale_gradients",
     .type = KeyType::boolean,
     .fallback = "false",
     .doc = "Divides gradients by the number of ranks before they are summed, not after.",
     .binding = bind_member<&Config::precision, &PrecisionConfig::prescale_gradients>()},
    {.pointer = "/gradient_predivide_factor",
     .type = KeyType::number,
     .fallback = "1",
     .range = kAboveZero,
     .doc = "Gradients are divided by this before they are summed over ranks, and by the rest of "
            "the number of ranks after. With prescale_gradients all of the division comes before.",
     .binding = bind_member<&Config::precision, &PrecisionConfig::gradient_predivide_factor>()},
    {.pointer = "/gradient_allreduce_op",
     .type = KeyType::string,
     .fallback = R"("mean")",
     .choices = "mean|sum",
     .doc = "How gradients of the ranks are combined.",
     .binding = bind_member<&Config::precision, &PrecisionConfig::gradient_reduction>()},
    removed("/sparse_gradients", KeyType::boolean, "false",
            "Embedding gradients as indices and values."),
    no_effect("/disable_allgather", KeyType::boolean, "false", "Unused in DeepSpeed too.",
              "DeepSpeed does not read it either"),
    no_effect("/dump_state", KeyType::boolean, "false", "Prints the configuration at start.",
              "`zerorun config show` prints it"),
    with_range(no_effect("/vocabulary_size", KeyType::integer, "null",
                         "Warns when it is not a multiple of 8.",
                         "matrix kernels here do not need a multiple of 8"),
               kPositive),
    no_effect("/memory_breakdown", KeyType::boolean, "false",
              "Logs memory use around each phase of a step.",
              "progress lines and metrics carry the memory of each rank"),
    removed("/graph_harvesting", KeyType::boolean, "false", "CUDA graph of the norm computation."),
    always_on(
        "/zero_allow_untested_optimizer", "false",
        "Allows optimizers that DeepSpeed has not tested with ZeRO; zerorun has no such list."),
    no_effect("/zero_force_ds_cpu_optimizer", KeyType::boolean, "true",
              "Insists on DeepSpeed's own CPU optimizer under offload.",
              "every optimizer here is zerorun's own"),
    no_effect("/dataloader_drop_last", KeyType::boolean, "false",
              "Drops the last incomplete batch of an epoch.",
              "the bundled train program makes full batches only"),
    pytorch("/use_data_before_expert_parallelism", KeyType::boolean, "false",
            "Neighbours hold the same experts, instead of all experts of a layer together."),
    with_choices(no_effect("/log_level", KeyType::string, "null", "Level of DeepSpeed's logger.",
                           "zerorun's lines are few, and all of them are printed"),
                 "debug|info|warning|error|critical"),
    no_effect("/disable_python_gc", KeyType::boolean, "false",
              "Collects Python garbage at step boundaries only.",
              "zerorun leaves Python's garbage collector alone"),

    block("/data_types", "dtypes that do not follow from `bf16` and `fp16`."),
    {.pointer = "/data_types/grad_accum_dtype",
     .type = KeyType::string,
     .choices = kDTypes,
     .doc = "dtype of the reduced and accumulated gradient. Not given: the parameters' dtype, or "
            "fp32 when gradients are accumulated over several micro-steps.",
     .binding = bind_member<&Config::precision, &PrecisionConfig::grad_accum_dtype>()},
    {.pointer = "/data_types/param_dtype",
     .type = KeyType::string,
     .choices = kDTypes,
     .doc = "Must agree with bf16.enabled and fp16.enabled, which decide."},
    {.pointer = "/data_types/buffer_dtype",
     .type = KeyType::string,
     .choices = kDTypes,
     .doc = "dtype of a PyTorch module's floating-point buffers. Not given: they keep their own."},
    {.pointer = "/data_types/keep_in_fp32_modules",
     .type = KeyType::string | KeyType::strings,
     .fallback = R"("auto")",
     .doc = "Buffers that are fp32 in 16-bit training, by patterns of their names in which `*` is "
            "any text; \"auto\": those that a Hugging Face model names. Parameters follow `bf16` "
            "and `fp16`."},
});

}  // namespace

std::span<const KeySpec> core_keys() { return kCoreKeys; }

}  // namespace zerorun
