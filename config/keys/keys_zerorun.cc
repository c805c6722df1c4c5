#include <array>

#include "config/keys/key_table.h"

// Keys of this project's own.

namespace zerorun {

namespace {

constexpr KeySpec option(std::string_view pointer, unsigned type, std::string_view doc) {
  return {.pointer = pointer, .type = type, .doc = doc};
}

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
     .doc =
         "Seconds that a collective may wait for other ranks before it is an error, from when this "
         "rank has got there. A rank that died or left is an error at once.",
     .nickname = "timeout",
     .binding = bind_member<&Config::comm_timeout_s>()},
    {.pointer = "/zerorun/share_parameters",
     .type = KeyType::boolean,
     .fallback = "true",
     .doc = "Stage 3 with several CPU ranks on a host: gathered parameters exist once per host.",
     .binding = bind_member<&Config::share_parameters>()},
    {.pointer = "/zerorun/shard_group_size",
     .type = KeyType::integer,
     .fallback = "0",
     .range = kNonNegative,
     .doc =
         "Ranks that share one copy of what the stage shards (stages 1 to 3): gathers stay among "
         "them, and groups add their sums of gradients. They are neighbours in rank order, and "
         "the number divides that of all ranks; 0: all. \"auto\": the ranks of a host.",
     .binding = bind_member<&Config::zero, &ZeroConfig::shard_group_size>()},

    {.pointer = "/zerorun/metrics",
     .type = KeyType::string,
     .fallback = "null",
     .doc = "File of a PyTorch program for one JSON object per step (docs/metrics.md) of rank 0; "
            "other ranks write theirs beside it, `m.rank1.jsonl` for `m.jsonl`.",
     .nickname = "metrics_file"},
    block("/zerorun/trace", "A timeline of some steps."),
    {.pointer = "/zerorun/trace/file",
     .type = KeyType::string,
     .fallback = "null",
     .doc = "File that rank 0 writes for Perfetto or chrome://tracing: what each rank computed and "
            "communicated when. Not given: no timeline."},
    {.pointer = "/zerorun/trace/steps",
     .type = KeyType::integers,
     .fallback = "[2,4]",
     .range = kPositive,
     .doc = "The first and the last step of the timeline, counted from 1.",
     .gate = "/zerorun/trace/file"},

    {.pointer = "/zerorun/train",
     .doc = "Options of the bundled train program; its command line wins.",
     .binding = kTrain},
    option("/zerorun/train/data", KeyType::string | KeyType::strings,
           "Text files, folders, or .bin files of tokens. Not given: text found on the machine."),
    option("/zerorun/train/model", KeyType::string,
           "nano, mini, gpt2, gpt2-medium, gpt2-large, gpt2-xl, or a JSON file."),
    option("/zerorun/train/init", KeyType::string,
           "Folder of a Hugging Face GPT-2 model to start from."),
    {.pointer = "/zerorun/train/seq_len",
     .type = KeyType::integer,
     .range = kPositive,
     .doc = "Tokens per sample.",
     .nickname = "sequence_length"},
    {.pointer = "/zerorun/train/micro_batch",
     .type = KeyType::integer,
     .range = kPositive,
     .doc = "Samples per rank and micro-step; the same as /train_micro_batch_size_per_gpu.",
     .nickname = "batch_size"},
    {.pointer = "/zerorun/train/steps",
     .type = KeyType::integer,
     .range = kPositive,
     .doc = "Optimizer steps.",
     .nickname = "max_steps"},
    with_range(option("/zerorun/train/seed", KeyType::integer,
                      "Seed of the initial parameters and of the data order."),
               kNonNegative),
    with_choices(option("/zerorun/train/dtype", KeyType::string,
                        "dtype of the parameters; must agree with /bf16/enabled and /fp16/enabled "
                        "where they are given."),
                 "fp32|bf16|fp16"),
    option("/zerorun/train/save", KeyType::string, "Folder for checkpoints and the final model."),
    with_range(option("/zerorun/train/save_every", KeyType::integer,
                      "Optimizer steps between two checkpoints; 0: only at the end."),
               kNonNegative),
    option("/zerorun/train/save_async", KeyType::boolean,
           "Train on while a checkpoint is written; the same as /checkpoint/async_save."),
    with_range(option("/zerorun/train/keep_last", KeyType::integer,
                      "Checkpoints that stay; the same as /checkpoint/keep_last."),
               kNonNegative),
    with_range(option("/zerorun/train/keep_every", KeyType::integer,
                      "Checkpoints after every N-th step stay too; the same as "
                      "/checkpoint/keep_every."),
               kNonNegative),
    option("/zerorun/train/resume", KeyType::string, "Folder of a checkpoint to continue from."),
    with_range(option("/zerorun/train/eval_every", KeyType::integer,
                      "Optimizer steps between two evaluations; 0: none."),
               kNonNegative),
    option("/zerorun/train/sample", KeyType::string, "Prompt of the text generated at the end."),
    option("/zerorun/train/recompute", KeyType::boolean,
           "Recomputes the activations of a block in the backward pass instead of keeping them."),
    option("/zerorun/train/metrics", KeyType::string, "File for one JSON object per step."),
});

}  // namespace

std::span<const KeySpec> zerorun_keys() { return kZerorunKeys; }

}  // namespace zerorun
