#include <array>

#include "config/keys/key_table.h"

// Keys that DeepSpeed does not have.

namespace zerorun {

namespace {

constexpr KeyBinding kTrain{
    .set =
        [](Config& config, const JsonNode& value) {
          JsonNode given = value;
          std::erase_if(given.children,
                        [](const JsonNode& child) { return child.kind == JsonNode::Kind::null; });
          config.train_options = to_text(given);
        },
};

constexpr auto kZerorunKeys = std::to_array<KeySpec>({
    block("/zerorun", "Settings that DeepSpeed does not have."),
    {.pointer = "/zerorun/comm_timeout",
     .type = KeyType::number,
     .fallback = "600",
     .range = {.low = 0, .high = 1e9, .above_low = true},
     .doc = "Seconds that a rank waits in a collective for other ranks before it raises an error. "
            "If a rank died or left, the error comes at once.",
     .nickname = "timeout",
     .binding = bind_member<&Config::comm_timeout_s>()},
    key("/zerorun/share_parameters", KeyType::boolean, "true",
        "Stage 3 with several CPU ranks on a host: keeps gathered parameters once per host, in "
        "shared memory.",
        bind_member<&Config::share_parameters>()),
    key("/zerorun/shard_group_size", KeyType::integer, "0",
        "Number of neighbouring ranks that share one copy of what the stage shards (stages 1 to "
        "3). Gathers stay within such a group; gradients are also summed over the groups. The "
        "value must divide the number of ranks. 0: all ranks are one group. \"auto\": the ranks of "
        "a host.",
        bind_member<&Config::zero, &ZeroConfig::shard_group_size>(), kNonNegative),
    key("/zerorun/overlap_param_gather", KeyType::boolean, "false",
        "PyTorch programs at stages 1 and 2 with overlap_comm: gathers of updated parameters "
        "continue during the next forward, which waits for a bucket when it first uses one of its "
        "parameters. docs/pytorch.md says which programs this is for. `train` always does so; "
        "other stages have no such gathers.",
        bind_member<&Config::zero, &ZeroConfig::overlap_param_gather>()),
    key("/zerorun/quantized_gradient_bits", KeyType::integer, "8",
        "Bits per element, 4 or 8, in which hosts send each other gradients with "
        "/zero_optimization/zero_quantized_gradients. DeepSpeed's ZeRO++ sends 4: 1.8 times fewer "
        "bytes than 8, for the slowest links, at some cost in the loss (docs/groups.md).",
        bind_member<&Config::zero, &ZeroConfig::quantized_gradient_bits>(), {.low = 4, .high = 8}),

    {.pointer = "/zerorun/metrics",
     .type = KeyType::string,
     .fallback = "null",
     .doc = "PyTorch programs: file to which rank 0 writes one JSON object per step "
            "(docs/metrics.md). Other ranks write theirs beside it, `m.rank1.jsonl` for `m.jsonl`.",
     .nickname = "metrics_file"},
    block("/zerorun/trace", "Recording of a timeline of some steps."),
    key("/zerorun/trace/file", KeyType::string, "null",
        "File for Perfetto or chrome://tracing, written by rank 0, that shows what each rank "
        "computed and communicated when. Not given: no timeline."),
    with_gate("/zerorun/trace/file",
              key("/zerorun/trace/steps", KeyType::integers, "[2,4]",
                  "The first and the last step of the timeline, counted from 1.", {}, kPositive)),

    {.pointer = "/zerorun/train",
     .doc = "Options of the bundled program `train`. Options on its command line take precedence.",
     .binding = kTrain},
    key("/zerorun/train/data", KeyType::string | KeyType::strings, "null",
        "Text files, folders, or .bin files of tokens. Not given: text that is found on the "
        "machine."),
    key("/zerorun/train/model", KeyType::string, "null",
        "Size of the model: nano, mini, gpt2, gpt2-medium, gpt2-large, gpt2-xl, or a JSON file "
        "that describes it."),
    key("/zerorun/train/init", KeyType::string, "null",
        "Folder of a Hugging Face GPT-2 model to start from."),
    {.pointer = "/zerorun/train/seq_len",
     .type = KeyType::integer,
     .range = kPositive,
     .doc = "Number of tokens per sample.",
     .nickname = "sequence_length"},
    {.pointer = "/zerorun/train/micro_batch",
     .type = KeyType::integer,
     .range = kPositive,
     .doc = "Samples per rank in one micro-step; same as /train_micro_batch_size_per_gpu.",
     .nickname = "batch_size"},
    {.pointer = "/zerorun/train/steps",
     .type = KeyType::integer,
     .range = kPositive,
     .doc = "Number of optimizer steps.",
     .nickname = "max_steps"},
    key("/zerorun/train/seed", KeyType::integer, "null",
        "Seed of the initial parameters and of the data order.", {}, kNonNegative),
    with_choices(key("/zerorun/train/dtype", KeyType::string, "null",
                     "dtype of the parameters; must agree with /bf16/enabled and /fp16/enabled "
                     "if these are given."),
                 "fp32|bf16|fp16"),
    key("/zerorun/train/save", KeyType::string, "null",
        "Folder for checkpoints and the final model."),
    key("/zerorun/train/save_every", KeyType::integer, "null",
        "Optimizer steps between two checkpoints; 0: saves only at the end.", {}, kNonNegative),
    key("/zerorun/train/save_async", KeyType::boolean, "null",
        "Continues training while a checkpoint is written; same as /checkpoint/async_save."),
    key("/zerorun/train/keep_last", KeyType::integer, "null",
        "Number of checkpoints to keep; same as /checkpoint/keep_last.", {}, kNonNegative),
    key("/zerorun/train/keep_every", KeyType::integer, "null",
        "Also keeps the checkpoints of every N-th step; same as /checkpoint/keep_every.", {},
        kNonNegative),
    key("/zerorun/train/resume", KeyType::string, "null",
        "Folder of a checkpoint to continue from."),
    key("/zerorun/train/eval_every", KeyType::integer, "null",
        "Optimizer steps between two evaluations; 0: no evaluation.", {}, kNonNegative),
    key("/zerorun/train/sample", KeyType::string, "null",
        "Prompt for the text that is generated at the end."),
    key("/zerorun/train/recompute", KeyType::boolean, "null",
        "Recomputes the activations of a block in the backward pass instead of keeping them."),
    key("/zerorun/train/fast_attention", KeyType::boolean, "null",
        "Lets cuDNN's attention add gradients in any order, with less memory."),
    key("/zerorun/train/metrics", KeyType::string, "null",
        "File to which one JSON object per step is written."),
});

}  // namespace

std::span<const KeySpec> zerorun_keys() { return kZerorunKeys; }

}  // namespace zerorun
