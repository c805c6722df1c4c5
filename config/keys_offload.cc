#include <array>

#include "config/key_table.h"

namespace zerorun {

namespace {

constexpr std::string_view kParam = "/zero_optimization/offload_param/device";
constexpr std::string_view kOptimizer = "/zero_optimization/offload_optimizer/device";
constexpr std::string_view kZenflow = "/zero_optimization/zenflow";

constexpr KeySpec device(std::string_view pointer, std::string_view doc) {
  return with_choices(not_yet(pointer, KeyType::string, R"("none")", doc), "none|cpu|nvme");
}

constexpr auto kKeys = std::to_array<KeySpec>({
    block("/zero_optimization/offload_param", "Where parameters rest between uses (stage 3)."),
    device(kParam, "none: on the device of the rank."),
    gated(kParam, "/zero_optimization/offload_param/nvme_path", KeyType::string, "null",
          "Folder for parameters on NVMe."),
    with_range(gated(kParam, "/zero_optimization/offload_param/buffer_count", KeyType::integer, "5",
                     "Staging buffers between NVMe and memory."),
               kPositive),
    with_range(gated(kParam, "/zero_optimization/offload_param/buffer_size", KeyType::integer,
                     "100000000", "Elements of a staging buffer."),
               kPositive),
    with_range(gated(kParam, "/zero_optimization/offload_param/max_in_cpu", KeyType::integer,
                     "1000000000", "Elements that stay in host memory."),
               kNonNegative),
    gated(kParam, "/zero_optimization/offload_param/pin_memory", KeyType::boolean, "true",
          "Page-locked host memory."),

    block("/zero_optimization/offload_optimizer", "Where optimizer states rest between steps."),
    device(kOptimizer, "none: on the device of the rank."),
    gated(kOptimizer, "/zero_optimization/offload_optimizer/nvme_path", KeyType::string, "null",
          "Folder for optimizer states on NVMe."),
    with_range(gated(kOptimizer, "/zero_optimization/offload_optimizer/buffer_count",
                     KeyType::integer, "4", "Staging buffers between NVMe and memory."),
               kPositive),
    gated(kOptimizer, "/zero_optimization/offload_optimizer/pin_memory", KeyType::boolean, "true",
          "Page-locked host memory."),
    gated(kOptimizer, "/zero_optimization/offload_optimizer/pipeline_read", KeyType::boolean,
          "false", "Reads from NVMe while the optimizer computes."),
    gated(kOptimizer, "/zero_optimization/offload_optimizer/pipeline_write", KeyType::boolean,
          "false", "Writes to NVMe while the optimizer computes."),
    gated(kOptimizer, "/zero_optimization/offload_optimizer/pipeline", KeyType::boolean, "false",
          "Both of the two above."),
    gated(kOptimizer, "/zero_optimization/offload_optimizer/fast_init", KeyType::boolean, "false",
          "Skips the first write to NVMe."),
    with_range(gated(kOptimizer, "/zero_optimization/offload_optimizer/ratio", KeyType::number, "1",
                     "Part of the states that is offloaded."),
               {.low = 0, .high = 1}),
    gated(kOptimizer, "/zero_optimization/offload_optimizer/super_offload", KeyType::boolean,
          "false", "Steps in a process of its own."),
    with_range(gated(kOptimizer, "/zero_optimization/offload_optimizer/cpuadam_cores_perc",
                     KeyType::number, "0.8", "Part of the cores for that process."),
               {.low = 0, .high = 1}),

    {.pointer = "/zero_optimization/cpu_offload",
     .type = KeyType::boolean,
     .fallback = "false",
     .status = KeyStatus::deprecated,
     .doc = "Older form of offload_optimizer.device \"cpu\".",
     .note = kOptimizer},
    {.pointer = "/zero_optimization/cpu_offload_param",
     .type = KeyType::boolean,
     .fallback = "false",
     .status = KeyStatus::deprecated,
     .doc = "Older form of offload_param.device \"cpu\".",
     .note = kParam},
    {.pointer = "/zero_optimization/cpu_offload_use_pin_memory",
     .type = KeyType::boolean,
     .fallback = "false",
     .status = KeyStatus::deprecated,
     .doc = "Older form of offload_optimizer.pin_memory.",
     .note = "/zero_optimization/offload_optimizer/pin_memory"},

    {.pointer = kZenflow,
     .status = KeyStatus::not_yet,
     .doc = "Selective asynchronous optimizer step on the CPU."},
    gated(kZenflow, "/zero_optimization/zenflow/topk_ratio", KeyType::number, "0.1",
          "Part of the gradients that is applied at once."),
    gated(kZenflow, "/zero_optimization/zenflow/select_strategy", KeyType::string, R"("auto")",
          "What a selection interval counts."),
    gated(kZenflow, "/zero_optimization/zenflow/select_interval",
          KeyType::integer | KeyType::string, R"("auto")", "Interval of a new selection."),
    gated(kZenflow, "/zero_optimization/zenflow/update_interval",
          KeyType::integer | KeyType::string, R"("auto")", "Steps between two full updates."),
    gated(kZenflow, "/zero_optimization/zenflow/overlap_step", KeyType::boolean, "false",
          "Updates beside the next step."),
    gated(kZenflow, "/zero_optimization/zenflow/offload", KeyType::boolean, "false",
          "Offloads the selected states too."),
    gated(kZenflow, "/zero_optimization/zenflow/auto_ratio", KeyType::number, "0.99",
          "Threshold of the automatic interval."),
    gated(kZenflow, "/zero_optimization/zenflow/full_warm_up_rounds", KeyType::integer, "0",
          "Full updates at the start."),
    gated(kZenflow, "/zero_optimization/zenflow/pt_reserved_cores_perc", KeyType::number, "0.5",
          "Part of the cores kept for PyTorch."),
    gated(kZenflow, "/zero_optimization/zenflow/steps_per_epoch", KeyType::integer, "null",
          "Optimizer steps per epoch."),

    block("/aio", "Asynchronous file I/O of NVMe offload."),
    with_range(
        gated(kOptimizer, "/aio/block_size", KeyType::integer, "1048576", "Bytes per request."),
        kPositive),
    with_range(gated(kOptimizer, "/aio/queue_depth", KeyType::integer, "8", "Requests in flight."),
               kPositive),
    with_range(gated(kOptimizer, "/aio/intra_op_parallelism", KeyType::integer, "1",
                     "Threads per transfer."),
               kPositive),
    {.pointer = "/aio/thread_count",
     .type = KeyType::integer,
     .fallback = "1",
     .range = kPositive,
     .status = KeyStatus::deprecated,
     .doc = "Older name.",
     .note = "/aio/intra_op_parallelism"},
    gated(kOptimizer, "/aio/single_submit", KeyType::boolean, "false",
          "Submits requests one by one."),
    gated(kOptimizer, "/aio/overlap_events", KeyType::boolean, "true",
          "Submits while it waits for completions."),
    gated(kOptimizer, "/aio/use_gds", KeyType::boolean, "false", "GPUDirect Storage."),
});

}  // namespace

std::span<const KeySpec> offload_keys() { return kKeys; }

}  // namespace zerorun
