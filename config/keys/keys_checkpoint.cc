#include <algorithm>

#include "config/keys/key_rows.h"

// Checkpoints and activation checkpointing.

namespace zerorun::keys {

namespace {

constexpr std::string_view kFormat = "zerorun writes its own checkpoint format";
constexpr std::string_view kCaller =
    "only deepspeed.checkpointing.configure reads it. To recompute, call the model's "
    "gradient_checkpointing_enable(), or for train give /zerorun/train/recompute";

template <auto Member>
constexpr KeyBinding checkpoint = bind<&Config::checkpoint, Member>;

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
            const double gib = child.number > 0 ? std::min(child.number, kMaxGib) : 0.0;  // NaN: 0
            config.checkpoint.async_buffer_size = static_cast<int64_t>(gib * (1 << 30));
          }
        },
};

constexpr auto kCheckpointKeys = std::to_array<KeySpec>({
    block("/checkpoint", "Saving and loading of checkpoints."),
    no_effect("tag_validation", string.one_of("Ignore|Warn|Fail"), R"("Warn")",
              "What to do if ranks use different tags for a checkpoint.",
              "all ranks use the tag of rank 0; programs that import deepspeed compare the tags"),
    no_effect("load_universal", boolean, "false", "Loads DeepSpeed's universal format.",
              "load_checkpoint recognises that format by its files"),
    pytorch("use_node_local_storage", boolean, "false",
            "For folders that hosts do not share: each host keeps the files of its own ranks. A "
            "load copies the files that a rank needs from the host that has them."),
    key("pickle_client_state", boolean, "false",
        "Python: pickles those parts of client_state and of schedules that JSON cannot hold. A "
        "load unpickles them, which can run code from the checkpoint."),
    key("async_save", boolean, "false",
        "A save returns when the states are copied; a thread hashes, writes and commits them while "
        "training continues. The next save waits for it. An error of the thread is raised by the "
        "next step, the next save or at the end.",
        checkpoint<&CheckpointConfig::async_save>, {.nickname = "asynchronous"}),
    key("async_buffer_size", integer.from(0), "0",
        "Bytes of each rank's buffer for that copy. If the states are larger, they pass through "
        "the buffer piece by piece while the training waits. 0: the size of the rank's states that "
        "are not offloaded, but at least 64 MiB.",
        checkpoint<&CheckpointConfig::async_buffer_size>),
    key("keep_last", integer.from(0), "0",
        "Number of checkpoints to keep in the folder: a save removes older ones. 0: keeps all.",
        checkpoint<&CheckpointConfig::keep_last>, {.nickname = "save_total_limit"}),
    key("keep_every", integer.from(0), "0",
        "With keep_last: also keeps checkpoints whose step is a multiple of this number.",
        checkpoint<&CheckpointConfig::keep_every>),
    block("/checkpoint/parallel_write", "Which ranks write in parallel."),
    no_effect("pipeline_stage", boolean, "false",
              "Lets the ranks of a pipeline stage write in parallel.", kFormat),
    no_effect("/checkpoint/checkpoint_serialization", boolean, "true",
              "Uses PyTorch's zip serialization.", kFormat),
    block("/checkpoint/writer", "DeepSpeed's fast checkpoint writer."),
    no_effect("type", string.one_of("FAST|PYTHON|MOCK"), "null", "Kind of writer.", kFormat),
    no_effect("io_buffer_size", integer, "67108864", "Bytes of the write buffer.", kFormat),
    no_effect("io_buffer_double", boolean, "true", "Uses two write buffers.", kFormat),
    no_effect("io_multiplier", integer, "1", "Number of writers per rank.", kFormat),
    no_effect("show_statistics", boolean, "false", "Logs write rates.", kFormat),
    no_effect("data_parallel", string.one_of("REPLICA|SOCKET|MACHINE"), "null",
              "Which ranks write in parallel.", kFormat),
    key("decoupled", boolean, "false", "DeepSpeed's name for /checkpoint/async_save.", kDecoupled),

    block("/nebula", "Azure's checkpoint service.", "enabled"),
    removed("enabled", boolean, "false", "Saves through Nebula."),
    not_yet("load_path", string, "null", "Folder to load from."),
    not_yet("enable_nebula_load", boolean, "true", "Loads from Nebula."),
    not_yet("persistent_storage_path", string, "null", "Folder to save to."),
    not_yet("persistent_time_interval", integer, "100", "Seconds between two saves."),
    not_yet("num_of_version_in_retention", integer, "2", "Number of checkpoints to keep."),
    key("/datastates_ckpt", free_form, "null",
        "DeepSpeed's DataStates: turns /checkpoint/async_save on, with a buffer of host_cache_size "
        "GiB.",
        kDataStates),

    block("/activation_checkpointing", "Recomputing activations in the backward pass."),
    no_effect("partition_activations", boolean, "false",
              "Shards the kept activations over model-parallel ranks.", kCaller),
    no_effect("number_checkpoints", integer, "null", "Number of activations to keep.", kCaller),
    no_effect("contiguous_memory_optimization", boolean, "false",
              "Keeps activations in one buffer.", "PyTorch's allocator places what is kept"),
    no_effect("synchronize_checkpoint_boundary", boolean, "false",
              "Synchronizes the device around each checkpoint.", "nothing has to wait"),
    no_effect("profile", boolean, "false", "Times forward and backward of each checkpoint.",
              "torch.profiler shows the recomputation"),
    no_effect("cpu_checkpointing", boolean, "false", "Keeps activations in host memory.", kCaller),
});

}  // namespace

std::span<const KeySpec> checkpoint_keys() { return kCheckpointKeys; }

}  // namespace zerorun::keys
