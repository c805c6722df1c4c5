#include "config/keys/key_rows.h"

// Keys that DeepSpeed does not have.

namespace zerorun::keys {

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
    key("comm_timeout", number.above(0, 1e9), "600",
        "Seconds that a rank waits in a collective for other ranks before it raises an error. If a "
        "rank died or left, the error comes at once.",
        bind<&Config::comm_timeout_s>, {.nickname = "timeout"}),
    key("share_parameters", boolean, "true",
        "Stage 3 with several CPU ranks on a host: keeps gathered parameters once per host, in "
        "shared memory.",
        bind<&Config::share_parameters>),
    key("shard_group_size", integer.from(0), "0",
        "Number of neighbouring ranks that share one copy of what the stage shards (stages 1 to "
        "3). Gathers stay within such a group; gradients are also summed over the groups. The "
        "value must divide the number of ranks. 0: all ranks are one group. \"auto\": the ranks of "
        "a host.",
        zero<&ZeroConfig::shard_group_size>),
    key("overlap_param_gather", boolean, "false",
        "PyTorch programs at stages 1 and 2 with overlap_comm: gathers of updated parameters "
        "continue during the next forward, which waits for a bucket when it first uses one of its "
        "parameters. docs/pytorch.md says which programs this is for. `train` always does so; "
        "other stages have no such gathers.",
        zero<&ZeroConfig::overlap_param_gather>),
    key("quantized_gradient_bits", integer.from(4, 8), "8",
        "Bits per element, 4 or 8, in which hosts send each other gradients with "
        "/zero_optimization/zero_quantized_gradients. DeepSpeed's ZeRO++ sends 4: 1.8 times fewer "
        "bytes than 8, for the slowest links, at some cost in the loss (docs/groups.md).",
        zero<&ZeroConfig::quantized_gradient_bits>),

    key("metrics", string, "null",
        "PyTorch programs: file to which rank 0 writes one JSON object per step (docs/metrics.md). "
        "Other ranks write theirs beside it, `m.rank1.jsonl` for `m.jsonl`.",
        {}, {.nickname = "metrics_file"}),
    block("/zerorun/trace", "Recording of a timeline of some steps.", "file"),
    key("file", string, "null",
        "File for Perfetto or chrome://tracing, written by rank 0, that shows what each rank "
        "computed and communicated when. Not given: no timeline."),
    key("steps", integers.from(1), "[2,4]",
        "The first and the last step of the timeline, counted from 1."),

    key("/zerorun/train", object, "null",
        "Options of the bundled program `train`. Options on its command line take precedence.",
        kTrain),
    key("data", string | strings, "null",
        "Text files, folders, or .bin files of tokens. Not given: text that is found on the "
        "machine."),
    key("model", string, "null",
        "Size of the model: nano, mini, gpt2, gpt2-medium, gpt2-large, gpt2-xl, or a JSON file "
        "that describes it."),
    key("init", string, "null", "Folder of a Hugging Face GPT-2 model to start from."),
    key("seq_len", integer.from(1), "null", "Number of tokens per sample.", {},
        {.nickname = "sequence_length"}),
    key("micro_batch", integer.from(1), "null",
        "Samples per rank in one micro-step; same as /train_micro_batch_size_per_gpu.", {},
        {.nickname = "batch_size"}),
    key("steps", integer.from(1), "null", "Number of optimizer steps.", {},
        {.nickname = "max_steps"}),
    key("seed", integer.from(0), "null", "Seed of the initial parameters and of the data order."),
    key("dtype", string.one_of("fp32|bf16|fp16"), "null",
        "dtype of the parameters; must agree with /bf16/enabled and /fp16/enabled if these are "
        "given."),
    key("save", string, "null", "Folder for checkpoints and the final model."),
    key("save_every", integer.from(0), "null",
        "Optimizer steps between two checkpoints; 0: saves only at the end."),
    key("save_async", boolean, "null",
        "Continues training while a checkpoint is written; same as /checkpoint/async_save."),
    key("keep_last", integer.from(0), "null",
        "Number of checkpoints to keep; same as /checkpoint/keep_last."),
    key("keep_every", integer.from(0), "null",
        "Also keeps the checkpoints of every N-th step; same as /checkpoint/keep_every."),
    key("resume", string, "null", "Folder of a checkpoint to continue from."),
    key("eval_every", integer.from(0), "null",
        "Optimizer steps between two evaluations; 0: no evaluation."),
    key("sample", string, "null", "Prompt for the text that is generated at the end."),
    key("recompute", boolean, "null",
        "Recomputes the activations of a block in the backward pass instead of keeping them."),
    key("fast_attention", boolean, "null",
        "Lets cuDNN's attention add gradients in any order, with less memory."),
    key("metrics", string, "null", "File to which one JSON object per step is written."),
});

}  // namespace

std::span<const KeySpec> zerorun_keys() { return kZerorunKeys; }

}  // namespace zerorun::keys
