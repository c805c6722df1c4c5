#include <array>

#include "config/keys/key_table.h"

namespace zerorun {

namespace {

constexpr std::string_view kParam = "/zero_optimization/offload_param/device";
constexpr std::string_view kOptimizer = "/zero_optimization/offload_optimizer/device";
constexpr std::string_view kEither =
    "/zero_optimization/offload_optimizer/device|/zero_optimization/offload_param/device";
constexpr std::string_view kZenflow = "/zero_optimization/zenflow";

constexpr std::string_view kParamPath = "/zero_optimization/offload_param/nvme_path";
constexpr std::string_view kOptimizerPath = "/zero_optimization/offload_optimizer/nvme_path";
constexpr KeyRange kThreads{.low = 1, .high = 64};

template <auto Member>
constexpr KeyBinding bind_optimizer() {
  return bind_member<&Config::offload, &OffloadConfig::optimizer, Member>();
}
template <auto Member>
constexpr KeyBinding bind_param() {
  return bind_member<&Config::offload, &OffloadConfig::param, Member>();
}
template <auto Member>
constexpr KeyBinding bind_aio() {
  return bind_member<&Config::offload, &OffloadConfig::aio, Member>();
}

constexpr KeySpec device(std::string_view pointer, KeyBinding binding, std::string_view choices,
                         std::string_view doc) {
  return {.pointer = pointer,
          .type = KeyType::string,
          .fallback = R"("none")",
          .choices = choices,
          .doc = doc,
          .binding = binding};
}
constexpr KeySpec works_with(std::string_view gate, std::string_view pointer, unsigned type,
                             std::string_view fallback, KeyBinding binding, std::string_view doc) {
  return {.pointer = pointer,
          .type = type,
          .fallback = fallback,
          .doc = doc,
          .gate = gate,
          .binding = binding};
}

constexpr auto kOffloadKeys = std::to_array<KeySpec>({
    block("/zero_optimization/offload_param",
          "Where parameters are stored while they are not in use (stage 3)."),
    device(kParam, bind_param<&OffloadParamConfig::device>(), "none|cpu|nvme",
           "none: on the rank's device. cpu: in host memory; CPU ranks of one host share one copy. "
           "nvme: in one file per rank, except max_in_cpu elements; all ranks have to gather the "
           "same modules in the same order."),
    works_with(kParam, kParamPath, KeyType::string, "null",
               bind_param<&OffloadParamConfig::nvme_path>(),
               "Folder on the NVMe disk for the parameters. The file has no name and disappears "
               "when the process ends."),
    with_range(works_with(kParam, "/zero_optimization/offload_param/buffer_count", KeyType::integer,
                          "5", bind_param<&OffloadParamConfig::buffer_count>(),
                          "Number of staging buffers between NVMe and memory, that is, of chunks "
                          "that can be read ahead."),
               {.low = 2, .high = 64}),
    with_range(
        works_with(
            kParam, "/zero_optimization/offload_param/buffer_size", KeyType::integer, "100000000",
            bind_unless_zero<&Config::offload, &OffloadConfig::param,
                             &OffloadParamConfig::buffer_size>(),
            "Maximum number of elements of a staging buffer; 0: the default. 4 Mi elements are "
            "enough for any disk, and no buffer is larger than the largest chunk of a shard."),
        kNonNegative),
    with_range(works_with(kParam, "/zero_optimization/offload_param/max_in_cpu", KeyType::integer,
                          "1000000000", bind_param<&OffloadParamConfig::max_in_cpu>(),
                          "With nvme: number of elements of each rank's shards that stay in host "
                          "memory; 0: none. Chunks of up to 4 Mi elements are taken in the model's "
                          "order as long as they fit. The file holds the rest."),
               kNonNegative),
    always_on("/zero_optimization/offload_param/pin_memory", "true", "Page-locked host memory."),

    block("/zero_optimization/offload_optimizer",
          "Where master parameters, optimizer states and reduced gradients are stored between "
          "steps (stages 1 to 3). The host's cores update what is stored there. Results are "
          "bitwise identical to those without offloading."),
    device(kOptimizer, bind_optimizer<&OffloadOptimizerConfig::device>(), "none|cpu|nvme",
           "none: on the rank's device. cpu: in host memory. nvme: master parameters and states in "
           "a file, gradients in host memory."),
    works_with(kOptimizer, kOptimizerPath, KeyType::string, "null",
               bind_optimizer<&OffloadOptimizerConfig::nvme_path>(),
               "Folder on the NVMe disk for the optimizer states. The file has no name and "
               "disappears when the process ends."),
    with_range(
        works_with(kOptimizer, "/zero_optimization/offload_optimizer/buffer_count",
                   KeyType::integer, "4", bind_optimizer<&OffloadOptimizerConfig::buffer_count>(),
                   "Number of staging buffers between NVMe and memory. Each holds up to 4 Mi "
                   "elements with all their states. With 3 or more, one can be read, one updated "
                   "and one written at the same time."),
        {.low = 2, .high = 64}),
    always_on("/zero_optimization/offload_optimizer/pin_memory", "true",
              "Page-locked host memory."),
    always_on("/zero_optimization/offload_optimizer/pipeline_read", "false",
              "Reads from NVMe while the optimizer computes."),
    always_on("/zero_optimization/offload_optimizer/pipeline_write", "false",
              "Writes to NVMe while the optimizer computes."),
    always_on("/zero_optimization/offload_optimizer/pipeline", "false",
              "Same as pipeline_read and pipeline_write."),
    always_on("/zero_optimization/offload_optimizer/fast_init", "false",
              "Does not write initial states that are zero to NVMe."),
    with_range(works_with(kOptimizer, "/zero_optimization/offload_optimizer/ratio", KeyType::number,
                          "1", bind_optimizer<&OffloadOptimizerConfig::ratio>(),
                          "Fraction of the elements of each shard whose states are offloaded; the "
                          "rest stays on the device (stages 1 to 3)."),
               {.low = 0, .high = 1}),
    not_yet("/zero_optimization/offload_optimizer/super_offload", KeyType::boolean, "false",
            "Updates before it is known whether the gradient is finite, and undoes the update if "
            "it is not.",
            "remove it: the host's update already overlaps with the copies"),
    with_range(gated("/zero_optimization/offload_optimizer/super_offload",
                     "/zero_optimization/offload_optimizer/cpuadam_cores_perc", KeyType::number,
                     "0.8", "Fraction of the cores that super_offload uses."),
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
     .doc = "Selective asynchronous optimizer step on the CPU, with stale gradients.",
     .note = "remove it; offload_optimizer alone gives the results of a run without offloading"},
    gated(kZenflow, "/zero_optimization/zenflow/topk_ratio", KeyType::number, "0.1",
          "Fraction of the gradients that is applied immediately."),
    gated(kZenflow, "/zero_optimization/zenflow/select_strategy", KeyType::string, R"("auto")",
          "Unit of the selection interval: steps or epochs."),
    gated(kZenflow, "/zero_optimization/zenflow/select_interval",
          KeyType::integer | KeyType::string, R"("auto")", "Interval between two selections."),
    gated(kZenflow, "/zero_optimization/zenflow/update_interval",
          KeyType::integer | KeyType::string, R"("auto")", "Steps between two full updates."),
    gated(kZenflow, "/zero_optimization/zenflow/overlap_step", KeyType::boolean, "false",
          "Overlaps the update with the next step."),
    gated(kZenflow, "/zero_optimization/zenflow/offload", KeyType::boolean, "false",
          "Also offloads the selected states."),
    gated(kZenflow, "/zero_optimization/zenflow/auto_ratio", KeyType::number, "0.99",
          "Threshold of the automatic interval."),
    gated(kZenflow, "/zero_optimization/zenflow/full_warm_up_rounds", KeyType::integer, "0",
          "Number of full updates at the start."),
    gated(kZenflow, "/zero_optimization/zenflow/pt_reserved_cores_perc", KeyType::number, "0.5",
          "Fraction of the cores reserved for PyTorch."),
    gated(kZenflow, "/zero_optimization/zenflow/steps_per_epoch", KeyType::integer, "null",
          "Optimizer steps per epoch."),

    block("/aio", "Asynchronous file I/O of NVMe offload."),
    with_range(
        works_with(kEither, "/aio/block_size", KeyType::integer, "1048576",
                   bind_aio<&AioConfig::block_size>(),
                   "Bytes per request, a multiple of 4096. `zerorun bench nvme` compares values."),
        {.low = 4096, .high = 1 << 28}),
    with_range(works_with(kEither, "/aio/queue_depth", KeyType::integer, "8",
                          bind_aio<&AioConfig::queue_depth>(), "Number of requests in flight."),
               {.low = 1, .high = 1024}),
    with_range(works_with(kEither, "/aio/intra_op_parallelism", KeyType::integer, "1",
                          bind_aio<&AioConfig::threads>(),
                          "Threads per transfer if the kernel does not allow io_uring; at least "
                          "queue_depth threads are used."),
               kThreads),
    {.pointer = "/aio/thread_count",
     .type = KeyType::integer,
     .fallback = "1",
     .range = kThreads,
     .status = KeyStatus::deprecated,
     .doc = "Older name of intra_op_parallelism.",
     .note = "/aio/intra_op_parallelism"},
    no_effect("/aio/single_submit", KeyType::boolean, "false", "Submits requests one by one.",
              "requests are submitted as fast as the queue accepts them"),
    always_on("/aio/overlap_events", "true", "Submits requests while it waits for completions."),
    not_yet("/aio/use_gds", KeyType::boolean, "false", "Uses GPUDirect Storage."),
});

}  // namespace

std::span<const KeySpec> offload_keys() { return kOffloadKeys; }

}  // namespace zerorun
