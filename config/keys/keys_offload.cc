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
    block("/zero_optimization/offload_param", "Storage of parameters between uses (stage 3)."),
    device(kParam, bind_param<&OffloadParamConfig::device>(), "none|cpu|nvme",
           "none: on the device of the rank. cpu: in host memory; CPU ranks of one host have them "
           "once for all. nvme: in a file per rank, but for max_in_cpu elements; all ranks gather "
           "the same modules in the same order."),
    works_with(kParam, kParamPath, KeyType::string, "null",
               bind_param<&OffloadParamConfig::nvme_path>(),
               "Folder for parameters on NVMe. The file has no name and is gone with the process."),
    with_range(works_with(kParam, "/zero_optimization/offload_param/buffer_count", KeyType::integer,
                          "5", bind_param<&OffloadParamConfig::buffer_count>(),
                          "Staging buffers between NVMe and memory: chunks that are read ahead."),
               {.low = 2, .high = 64}),
    with_range(
        works_with(kParam, "/zero_optimization/offload_param/buffer_size", KeyType::integer,
                   "100000000",
                   bind_unless_zero<&Config::offload, &OffloadConfig::param,
                                    &OffloadParamConfig::buffer_size>(),
                   "Elements of a staging buffer, at most; 4 Mi are enough for any disk, and "
                   "no buffer is larger than the largest chunk of a shard; 0: the default."),
        kNonNegative),
    with_range(works_with(kParam, "/zero_optimization/offload_param/max_in_cpu", KeyType::integer,
                          "1000000000", bind_param<&OffloadParamConfig::max_in_cpu>(),
                          "With nvme: elements of each rank's shards that stay in host memory: "
                          "chunks of up to 4 Mi, in the model's order, each that still fits; 0: "
                          "none. The file holds the rest."),
               kNonNegative),
    always_on("/zero_optimization/offload_param/pin_memory", "true", "Page-locked host memory."),

    block("/zero_optimization/offload_optimizer",
          "Storage of masters, optimizer states and reduced gradients between steps (stages 1 to "
          "3); the host's cores update what is stored there. The numbers are the same as without."),
    device(kOptimizer, bind_optimizer<&OffloadOptimizerConfig::device>(), "none|cpu|nvme",
           "none: on the device of the rank. cpu: in host memory. nvme: masters and states in a "
           "file, gradients in host memory."),
    works_with(kOptimizer, kOptimizerPath, KeyType::string, "null",
               bind_optimizer<&OffloadOptimizerConfig::nvme_path>(),
               "Folder for optimizer states on NVMe. The file has no name and is gone with the "
               "process."),
    with_range(
        works_with(kOptimizer, "/zero_optimization/offload_optimizer/buffer_count",
                   KeyType::integer, "4", bind_optimizer<&OffloadOptimizerConfig::buffer_count>(),
                   "Staging buffers between NVMe and memory, of up to 4 Mi elements with all "
                   "of their states each. 3 read, compute and write at the same time."),
        {.low = 2, .high = 64}),
    always_on("/zero_optimization/offload_optimizer/pin_memory", "true",
              "Page-locked host memory."),
    always_on("/zero_optimization/offload_optimizer/pipeline_read", "false",
              "Reads from NVMe while the optimizer computes."),
    always_on("/zero_optimization/offload_optimizer/pipeline_write", "false",
              "Writes to NVMe while the optimizer computes."),
    always_on("/zero_optimization/offload_optimizer/pipeline", "false", "Both of the two above."),
    always_on("/zero_optimization/offload_optimizer/fast_init", "false",
              "States that are zero at the start are not written to NVMe."),
    with_range(works_with(kOptimizer, "/zero_optimization/offload_optimizer/ratio", KeyType::number,
                          "1", bind_optimizer<&OffloadOptimizerConfig::ratio>(),
                          "Part of each shard's states that is offloaded, by elements; the rest "
                          "stays on the device (stages 1 to 3)."),
               {.low = 0, .high = 1}),
    not_yet("/zero_optimization/offload_optimizer/super_offload", KeyType::boolean, "false",
            "Steps ahead of the decision about the gradient, and takes them back.",
            "remove it: the host's step already runs beside the copies"),
    with_range(gated("/zero_optimization/offload_optimizer/super_offload",
                     "/zero_optimization/offload_optimizer/cpuadam_cores_perc", KeyType::number,
                     "0.8", "Part of the cores for that."),
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
     .note = "remove it; offload_optimizer alone gives the numbers of a run without offload"},
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
    with_range(works_with(kEither, "/aio/block_size", KeyType::integer, "1048576",
                          bind_aio<&AioConfig::block_size>(),
                          "Bytes per request: a multiple of 4096. `zerorun bench nvme` compares."),
               {.low = 4096, .high = 1 << 28}),
    with_range(works_with(kEither, "/aio/queue_depth", KeyType::integer, "8",
                          bind_aio<&AioConfig::queue_depth>(), "Requests in flight."),
               {.low = 1, .high = 1024}),
    with_range(works_with(kEither, "/aio/intra_op_parallelism", KeyType::integer, "1",
                          bind_aio<&AioConfig::threads>(),
                          "Threads per transfer, where the kernel refuses io_uring: this many, or "
                          "queue_depth when that is more."),
               kThreads),
    {.pointer = "/aio/thread_count",
     .type = KeyType::integer,
     .fallback = "1",
     .range = kThreads,
     .status = KeyStatus::deprecated,
     .doc = "Older name.",
     .note = "/aio/intra_op_parallelism"},
    no_effect("/aio/single_submit", KeyType::boolean, "false", "Submits requests one by one.",
              "requests are submitted as fast as the queue takes them"),
    always_on("/aio/overlap_events", "true", "Submits while it waits for completions."),
    not_yet("/aio/use_gds", KeyType::boolean, "false", "GPUDirect Storage."),
});

}  // namespace

std::span<const KeySpec> offload_keys() { return kOffloadKeys; }

}  // namespace zerorun
