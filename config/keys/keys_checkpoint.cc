#include <algorithm>
#include <array>

#include "config/keys/key_table.h"

// Checkpoints and activation checkpointing.

namespace zerorun {

namespace {

constexpr std::string_view kFormat = "zerorun writes its own checkpoint format";
constexpr std::string_view kCaller =
    "only deepspeed.checkpointing.configure reads it. To recompute, call the model's "
    "gradient_checkpointing_enable(), or for train give /zerorun/train/recompute";
constexpr std::string_view kNebula = "/nebula/enabled";

constexpr KeySpec writer(std::string_view pointer, unsigned type, std::string_view fallback,
                         std::string_view doc) {
  return no_effect(pointer, type, fallback, doc, kFormat);
}

// DeepSpeed's keys for asynchronous saves.
constexpr KeyBinding kDecoupled{
    .set =
        [](Config& config, const JsonNode& value) {
          bool decoupled = false;
          read_value(value, decoupled);
          if (decoupled) config.checkpoint.async_save = true;
        },
};
constexpr KeyBinding kDataStates{
    .set =
        [](Config& config, const JsonNode& value) {
          config.checkpoint.async_save = true;
          for (const JsonNode& child : value.children) {
            if (child.key != "host_cache_size") continue;
            constexpr double kMaxGib = 1 << 20;
            const double gib = std::clamp(child.number, 0.0, kMaxGib);
            config.checkpoint.async_buffer_size = static_cast<int64_t>(gib * (1 << 30));
          }
        },
};

constexpr auto kCheckpointKeys = std::to_array<KeySpec>({
    block("/checkpoint", "Saving and loading of checkpoints."),
    with_choices(
        no_effect(
            "/checkpoint/tag_validation", KeyType::string, R"("Warn")",
            "What to do if ranks use different tags for a checkpoint.",
            "all ranks use the tag of rank 0; programs that import deepspeed compare the tags"),
        "Ignore|Warn|Fail"),
    no_effect("/checkpoint/load_universal", KeyType::boolean, "false",
              "Loads DeepSpeed's universal format.",
              "load_checkpoint recognises that format by its files"),
    {.pointer = "/checkpoint/use_node_local_storage",
     .type = KeyType::boolean,
     .fallback = "false",
     .status = KeyStatus::pytorch,
     .doc = "For folders that hosts do not share: each host keeps the files of its own ranks. A "
            "load copies the files that a rank needs from the host that has them."},
    key("/checkpoint/pickle_client_state", KeyType::boolean, "false",
        "Python: pickles those parts of client_state and of schedules that JSON cannot hold. A "
        "load unpickles them, which can run code from the checkpoint."),
    {.pointer = "/checkpoint/async_save",
     .type = KeyType::boolean,
     .fallback = "false",
     .doc = "A save returns when the states are copied; a thread hashes, writes and commits them "
            "while training continues. The next save waits for it. An error of the thread is "
            "raised by the next step, the next save or at the end.",
     .nickname = "asynchronous",
     .binding = bind_member<&Config::checkpoint, &CheckpointConfig::async_save>()},
    key("/checkpoint/async_buffer_size", KeyType::integer, "0",
        "Bytes of each rank's buffer for that copy. If the states are larger, they pass through "
        "the buffer piece by piece while the training waits. 0: the size of the rank's states that "
        "are not offloaded, but at least 64 MiB.",
        bind_member<&Config::checkpoint, &CheckpointConfig::async_buffer_size>(), kNonNegative),
    {.pointer = "/checkpoint/keep_last",
     .type = KeyType::integer,
     .fallback = "0",
     .range = kNonNegative,
     .doc = "Number of checkpoints to keep in the folder: a save removes older ones. 0: keeps all.",
     .nickname = "save_total_limit",
     .binding = bind_member<&Config::checkpoint, &CheckpointConfig::keep_last>()},
    key("/checkpoint/keep_every", KeyType::integer, "0",
        "With keep_last: also keeps checkpoints whose step is a multiple of this number.",
        bind_member<&Config::checkpoint, &CheckpointConfig::keep_every>(), kNonNegative),
    block("/checkpoint/parallel_write", "Which ranks write in parallel."),
    writer("/checkpoint/parallel_write/pipeline_stage", KeyType::boolean, "false",
           "Lets the ranks of a pipeline stage write in parallel."),
    writer("/checkpoint/checkpoint_serialization", KeyType::boolean, "true",
           "Uses PyTorch's zip serialization."),
    block("/checkpoint/writer", "DeepSpeed's fast checkpoint writer."),
    with_choices(writer("/checkpoint/writer/type", KeyType::string, "null", "Kind of writer."),
                 "FAST|PYTHON|MOCK"),
    writer("/checkpoint/writer/io_buffer_size", KeyType::integer, "67108864",
           "Bytes of the write buffer."),
    writer("/checkpoint/writer/io_buffer_double", KeyType::boolean, "true",
           "Uses two write buffers."),
    writer("/checkpoint/writer/io_multiplier", KeyType::integer, "1",
           "Number of writers per rank."),
    writer("/checkpoint/writer/show_statistics", KeyType::boolean, "false", "Logs write rates."),
    with_choices(writer("/checkpoint/writer/data_parallel", KeyType::string, "null",
                        "Which ranks write in parallel."),
                 "REPLICA|SOCKET|MACHINE"),
    key("/checkpoint/writer/decoupled", KeyType::boolean, "false",
        "DeepSpeed's name for /checkpoint/async_save.", kDecoupled),

    block("/nebula", "Azure's checkpoint service."),
    removed(kNebula, KeyType::boolean, "false", "Saves through Nebula."),
    gated(kNebula, "/nebula/load_path", KeyType::string, "null", "Folder to load from."),
    gated(kNebula, "/nebula/enable_nebula_load", KeyType::boolean, "true", "Loads from Nebula."),
    gated(kNebula, "/nebula/persistent_storage_path", KeyType::string, "null",
          "Folder to save to."),
    gated(kNebula, "/nebula/persistent_time_interval", KeyType::integer, "100",
          "Seconds between two saves."),
    gated(kNebula, "/nebula/num_of_version_in_retention", KeyType::integer, "2",
          "Number of checkpoints to keep."),
    key("/datastates_ckpt", KeyType::free_form, "null",
        "DeepSpeed's DataStates: turns /checkpoint/async_save on, with a buffer of host_cache_size "
        "GiB.",
        kDataStates),

    block("/activation_checkpointing", "Recomputing activations in the backward pass."),
    no_effect("/activation_checkpointing/partition_activations", KeyType::boolean, "false",
              "Shards the kept activations over model-parallel ranks.", kCaller),
    no_effect("/activation_checkpointing/number_checkpoints", KeyType::integer, "null",
              "Number of activations to keep.", kCaller),
    no_effect("/activation_checkpointing/contiguous_memory_optimization", KeyType::boolean, "false",
              "Keeps activations in one buffer.", "PyTorch's allocator places what is kept"),
    no_effect("/activation_checkpointing/synchronize_checkpoint_boundary", KeyType::boolean,
              "false", "Synchronizes the device around each checkpoint.", "nothing has to wait"),
    no_effect("/activation_checkpointing/profile", KeyType::boolean, "false",
              "Times forward and backward of each checkpoint.",
              "torch.profiler shows the recomputation"),
    no_effect("/activation_checkpointing/cpu_checkpointing", KeyType::boolean, "false",
              "Keeps activations in host memory.", kCaller),
});

}  // namespace

std::span<const KeySpec> checkpoint_keys() { return kCheckpointKeys; }

}  // namespace zerorun
