#include "config/keys/key_rows.h"

namespace zerorun::keys {

namespace {

constexpr std::string_view kParam = "/zero_optimization/offload_param/device";
constexpr std::string_view kOptimizer = "/zero_optimization/offload_optimizer/device";
constexpr std::string_view kEither =
    "/zero_optimization/offload_optimizer/device|/zero_optimization/offload_param/device";

template <auto Member>
constexpr KeyBinding offload_optimizer = bind<&Config::offload, &OffloadConfig::optimizer, Member>;
template <auto Member>
constexpr KeyBinding offload_param = bind<&Config::offload, &OffloadConfig::param, Member>;
template <auto Member>
constexpr KeyBinding aio = bind<&Config::offload, &OffloadConfig::aio, Member>;

constexpr auto kOffloadKeys = std::to_array<KeySpec>({
    block("/zero_optimization/offload_param",
          "Where parameters are stored while they are not in use (stage 3).", "device"),
    key("device", string.one_of("none|cpu|nvme"), R"("none")",
        "none: on the rank's device. cpu: in host memory; CPU ranks of one host share one copy. "
        "nvme: in one file per rank, except max_in_cpu elements; all ranks have to gather the same "
        "modules in the same order.",
        offload_param<&OffloadParamConfig::device>),
    key("nvme_path", string, "null",
        "Folder on the NVMe disk for the parameters. The file has no name and disappears when the "
        "process ends.",
        offload_param<&OffloadParamConfig::nvme_path>),
    key("buffer_count", integer.from(2, 64), "5",
        "Number of staging buffers between NVMe and memory, that is, of chunks that can be read "
        "ahead.",
        offload_param<&OffloadParamConfig::buffer_count>),
    key("buffer_size", integer.from(0), "100000000",
        "Maximum number of elements of a staging buffer; 0: the default. 4 Mi elements are enough "
        "for any disk, and no buffer is larger than the largest chunk of a shard.",
        bind_unless_zero<&Config::offload, &OffloadConfig::param,
                         &OffloadParamConfig::buffer_size>),
    key("max_in_cpu", integer.from(0), "1000000000",
        "With nvme: number of elements of each rank's shards that stay in host memory; 0: none. "
        "Chunks of up to 4 Mi elements are taken in the model's order as long as they fit. The "
        "file holds the rest.",
        offload_param<&OffloadParamConfig::max_in_cpu>),
    always_on("pin_memory", "true", "Page-locked host memory."),

    block("/zero_optimization/offload_optimizer",
          "Where master parameters, optimizer states and reduced gradients are stored between "
          "steps (stages 1 to 3). The host's cores update what is stored there. Results are "
          "bitwise identical to those without offloading.",
          "device"),
    key("device", string.one_of("none|cpu|nvme"), R"("none")",
        "none: on the rank's device. cpu: in host memory. nvme: master parameters and states in a "
        "file, gradients in host memory.",
        offload_optimizer<&OffloadOptimizerConfig::device>),
    key("nvme_path", string, "null",
        "Folder on the NVMe disk for the optimizer states. The file has no name and disappears "
        "when the process ends.",
        offload_optimizer<&OffloadOptimizerConfig::nvme_path>),
    key("buffer_count", integer.from(2, 64), "4",
        "Number of staging buffers between NVMe and memory. Each holds up to 4 Mi elements with "
        "all their states. With 3 or more, one can be read, one updated and one written at the "
        "same time.",
        offload_optimizer<&OffloadOptimizerConfig::buffer_count>),
    always_on("pin_memory", "true", "Page-locked host memory."),
    always_on("pipeline_read", "false", "Reads from NVMe while the optimizer computes."),
    always_on("pipeline_write", "false", "Writes to NVMe while the optimizer computes."),
    always_on("pipeline", "false", "Same as pipeline_read and pipeline_write."),
    always_on("fast_init", "false", "Does not write initial states that are zero to NVMe."),
    key("ratio", number.from(0, 1), "1",
        "Fraction of the elements of each shard whose states are offloaded; the rest stays on the "
        "device (stages 1 to 3).",
        offload_optimizer<&OffloadOptimizerConfig::ratio>),
    not_yet("/zero_optimization/offload_optimizer/super_offload", boolean, "false",
            "Updates before it is known whether the gradient is finite, and undoes the update if "
            "it is not.",
            "remove it: the host's update already overlaps with the copies"),
    not_yet("cpuadam_cores_perc", number.from(0, 1), "0.8",
            "Fraction of the cores that super_offload uses.", {},
            {.gate = "/zero_optimization/offload_optimizer/super_offload"}),

    deprecated("/zero_optimization/cpu_offload", boolean, "false",
               "Older form of offload_optimizer.device \"cpu\".", kOptimizer),
    deprecated("/zero_optimization/cpu_offload_param", boolean, "false",
               "Older form of offload_param.device \"cpu\".", kParam),
    deprecated("/zero_optimization/cpu_offload_use_pin_memory", boolean, "false",
               "Older form of offload_optimizer.pin_memory.",
               "/zero_optimization/offload_optimizer/pin_memory"),

    not_yet("/zero_optimization/zenflow", object, "null",
            "Selective asynchronous optimizer step on the CPU, with stale gradients.",
            "remove it; offload_optimizer alone gives the results of a run without offloading",
            {.gate_of_keys = "/zero_optimization/zenflow"}),
    not_yet("topk_ratio", number, "0.1", "Fraction of the gradients that is applied immediately."),
    not_yet("select_strategy", string, R"("auto")",
            "Unit of the selection interval: steps or epochs."),
    not_yet("select_interval", integer | string, R"("auto")", "Interval between two selections."),
    not_yet("update_interval", integer | string, R"("auto")", "Steps between two full updates."),
    not_yet("overlap_step", boolean, "false", "Overlaps the update with the next step."),
    not_yet("offload", boolean, "false", "Also offloads the selected states."),
    not_yet("auto_ratio", number, "0.99", "Threshold of the automatic interval."),
    not_yet("full_warm_up_rounds", integer, "0", "Number of full updates at the start."),
    not_yet("pt_reserved_cores_perc", number, "0.5", "Fraction of the cores reserved for PyTorch."),
    not_yet("steps_per_epoch", integer, "null", "Optimizer steps per epoch."),

    block("/aio", "Asynchronous file I/O of NVMe offload.", kEither),
    key("block_size", integer.from(4096, 1 << 28), "1048576",
        "Bytes per request, a multiple of 4096. `zerorun bench nvme` compares values.",
        aio<&AioConfig::block_size>),
    key("queue_depth", integer.from(1, 1024), "8", "Number of requests in flight.",
        aio<&AioConfig::queue_depth>),
    key("intra_op_parallelism", integer.from(1, 64), "1",
        "Threads per transfer if the kernel does not allow io_uring; at least queue_depth threads "
        "are used.",
        aio<&AioConfig::threads>),
    deprecated("thread_count", integer.from(1, 64), "1", "Older name of intra_op_parallelism.",
               "/aio/intra_op_parallelism"),
    no_effect("single_submit", boolean, "false", "Submits requests one by one.",
              "requests are submitted as fast as the queue accepts them"),
    always_on("overlap_events", "true", "Submits requests while it waits for completions."),
    not_yet("/aio/use_gds", boolean, "false", "Uses GPUDirect Storage."),
});

}  // namespace

std::span<const KeySpec> offload_keys() { return kOffloadKeys; }

}  // namespace zerorun::keys
