#include <array>

#include "config/key_table.h"

// Checkpoints and activation checkpointing.

namespace zerorun {

namespace {

constexpr std::string_view kFormat = "zerorun writes a checkpoint format of its own";
constexpr std::string_view kCaller =
    "acts only on programs that call deepspeed.checkpointing; see /zerorun/train/recompute";
constexpr std::string_view kNebula = "/nebula/enabled";

constexpr KeySpec writer(std::string_view pointer, unsigned type, std::string_view fallback,
                         std::string_view doc) {
  return no_effect(pointer, type, fallback, doc, kFormat);
}

constexpr auto kCheckpointKeys = std::to_array<KeySpec>({
    block("/checkpoint", "Saving and loading."),
    with_choices(no_effect("/checkpoint/tag_validation", KeyType::string, R"("Warn")",
                           "What to do when ranks disagree about a checkpoint's tag.",
                           "all ranks save and load the tag that rank 0 names"),
                 "Ignore|Warn|Fail"),
    no_effect("/checkpoint/load_universal", KeyType::boolean, "false",
              "Loads DeepSpeed's universal format.",
              "load_checkpoint tells that format by its files"),
    not_yet("/checkpoint/use_node_local_storage", KeyType::boolean, "false",
            "Each host writes what other hosts share."),
    {.pointer = "/checkpoint/pickle_client_state",
     .type = KeyType::boolean,
     .fallback = "false",
     .doc = "Python: what JSON cannot hold of client_state and schedules is pickled, and a load "
            "unpickles it, which runs code of the checkpoint."},
    block("/checkpoint/parallel_write", "Which ranks write what."),
    writer("/checkpoint/parallel_write/pipeline_stage", KeyType::boolean, "false",
           "Ranks of a pipeline stage write in parallel."),
    writer("/checkpoint/checkpoint_serialization", KeyType::boolean, "true",
           "PyTorch's zip serialization."),
    block("/checkpoint/writer", "DeepSpeed's fast checkpoint writer."),
    with_choices(writer("/checkpoint/writer/type", KeyType::string, "null", "Kind of writer."),
                 "FAST|PYTHON|MOCK"),
    writer("/checkpoint/writer/io_buffer_size", KeyType::integer, "67108864",
           "Bytes of the write buffer."),
    writer("/checkpoint/writer/io_buffer_double", KeyType::boolean, "true", "Two write buffers."),
    writer("/checkpoint/writer/io_multiplier", KeyType::integer, "1", "Writers per rank."),
    writer("/checkpoint/writer/show_statistics", KeyType::boolean, "false", "Logs write rates."),
    with_choices(writer("/checkpoint/writer/data_parallel", KeyType::string, "null",
                        "Ranks that write in parallel."),
                 "REPLICA|SOCKET|MACHINE"),
    writer("/checkpoint/writer/decoupled", KeyType::boolean, "false", "Writes in the background."),

    block("/nebula", "Azure's checkpoint service."),
    removed(kNebula, KeyType::boolean, "false", "Saves through Nebula."),
    gated(kNebula, "/nebula/load_path", KeyType::string, "null", "Folder to load from."),
    gated(kNebula, "/nebula/enable_nebula_load", KeyType::boolean, "true", "Loads from Nebula."),
    gated(kNebula, "/nebula/persistent_storage_path", KeyType::string, "null",
          "Folder to save to."),
    gated(kNebula, "/nebula/persistent_time_interval", KeyType::integer, "100",
          "Seconds between two saves."),
    gated(kNebula, "/nebula/num_of_version_in_retention", KeyType::integer, "2",
          "Checkpoints that are kept."),
    not_yet("/datastates_ckpt", KeyType::free_form, "null", "DataStates asynchronous checkpoints."),

    block("/activation_checkpointing", "Recomputing activations in the backward pass."),
    no_effect("/activation_checkpointing/partition_activations", KeyType::boolean, "false",
              "Shards kept activations over model-parallel ranks.", kCaller),
    no_effect("/activation_checkpointing/number_checkpoints", KeyType::integer, "null",
              "Kept activations of a model.", kCaller),
    no_effect("/activation_checkpointing/contiguous_memory_optimization", KeyType::boolean, "false",
              "Keeps activations in one buffer.", kCaller),
    no_effect("/activation_checkpointing/synchronize_checkpoint_boundary", KeyType::boolean,
              "false", "Synchronizes the device around each checkpoint.", kCaller),
    no_effect("/activation_checkpointing/profile", KeyType::boolean, "false",
              "Times forward and backward of each checkpoint.", kCaller),
    no_effect("/activation_checkpointing/cpu_checkpointing", KeyType::boolean, "false",
              "Keeps activations in host memory.", kCaller),
});

}  // namespace

std::span<const KeySpec> checkpoint_keys() { return kCheckpointKeys; }

}  // namespace zerorun
