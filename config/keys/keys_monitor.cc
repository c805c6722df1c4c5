#include <array>

#include "config/keys/key_table.h"

// Monitoring and profiling.

namespace zerorun {

namespace {

constexpr std::string_view kTensorboard = "/tensorboard/enabled";
constexpr std::string_view kCsv = "/csv_monitor/enabled";
constexpr std::string_view kWandb = "/wandb/enabled";
constexpr std::string_view kComet = "/comet/enabled";
constexpr std::string_view kComms = "/comms_logger/enabled";
constexpr std::string_view kFlops = "/flops_profiler/enabled";

// A key of a block that `gate` turns on.
constexpr KeySpec in_block(std::string_view gate, std::string_view pointer, unsigned type,
                           std::string_view fallback, std::string_view doc) {
  return {.pointer = pointer, .type = type, .fallback = fallback, .doc = doc, .gate = gate};
}
constexpr KeySpec enables(std::string_view pointer, std::string_view doc) {
  return {.pointer = pointer, .type = KeyType::boolean, .fallback = "false", .doc = doc};
}

constexpr std::string_view kThroughput =
    "throughput is always measured, without synchronizing the device";

constexpr auto kMonitorKeys = std::to_array<KeySpec>({
    block("/tensorboard", "TensorBoard event files."),
    enables(
        kTensorboard,
        "Writes scalars of each step for TensorBoard, on rank 0; needs the package tensorboard."),
    in_block(kTensorboard, "/tensorboard/output_path", KeyType::string, R"("")", "Folder."),
    in_block(kTensorboard, "/tensorboard/job_name", KeyType::string, R"("DeepSpeedJobName")",
             "Name of the job."),

    block("/csv_monitor", "One CSV file per metric."),
    enables(kCsv, "Writes a line to a file per scalar and step, on rank 0."),
    in_block(kCsv, "/csv_monitor/output_path", KeyType::string, R"("")", "Folder."),
    in_block(kCsv, "/csv_monitor/job_name", KeyType::string, R"("DeepSpeedJobName")",
             "Name of the job."),

    block("/wandb", "Weights & Biases."),
    enables(kWandb, "Reports scalars of each step; needs the package wandb."),
    in_block(kWandb, "/wandb/group", KeyType::string, "null", "Group of runs."),
    in_block(kWandb, "/wandb/team", KeyType::string, "null", "Team."),
    in_block(kWandb, "/wandb/project", KeyType::string, R"("deepspeed")", "Project."),

    block("/comet", "Comet."),
    enables(kComet, "Reports scalars of each step; needs the package comet_ml."),
    in_block(kComet, "/comet/samples_log_interval", KeyType::integer, "100",
             "Samples between two reports."),
    in_block(kComet, "/comet/project", KeyType::string, "null", "Project."),
    in_block(kComet, "/comet/workspace", KeyType::string, "null", "Workspace."),
    in_block(kComet, "/comet/api_key", KeyType::string, "null", "API key."),
    in_block(kComet, "/comet/experiment_name", KeyType::string, "null", "Name of the experiment."),
    in_block(kComet, "/comet/experiment_key", KeyType::string, "null", "Key of the experiment."),
    in_block(kComet, "/comet/online", KeyType::boolean, "null", "Reports while the job runs."),
    in_block(kComet, "/comet/mode", KeyType::string, "null", "New or existing experiment."),

    block("/comms_logger", "Log of collectives."),
    enables(kComms,
            "Records each collective of the engine for deepspeed.comm.log_summary() and "
            "zerorun.metrics.log_summary()."),
    in_block(kComms, "/comms_logger/prof_all", KeyType::boolean, "true", "All collectives."),
    in_block(kComms, "/comms_logger/prof_ops", KeyType::strings, "[]", "Names of collectives."),
    in_block(kComms, "/comms_logger/verbose", KeyType::boolean, "false", "One line each."),
    in_block(kComms, "/comms_logger/debug", KeyType::boolean, "false", "Names the caller."),

    block("/flops_profiler", "Profile of floating point operations per module."),
    enables(
        kFlops,
        "Prints parameters, FLOPs and latency per module of one step's forward pass, on rank 0; "
        "adds wall_clock_breakdown."),
    in_block(kFlops, "/flops_profiler/recompute_fwd_factor", KeyType::number, "0",
             "Forward passes that recomputation adds."),
    in_block(kFlops, "/flops_profiler/profile_step", KeyType::integer, "1", "Step to profile."),
    in_block(kFlops, "/flops_profiler/module_depth", KeyType::integer, "-1",
             "Depth of printed modules; -1: all."),
    in_block(kFlops, "/flops_profiler/top_modules", KeyType::integer, "1", "Modules per depth."),
    in_block(kFlops, "/flops_profiler/detailed", KeyType::boolean, "true", "Prints each module."),
    in_block(kFlops, "/flops_profiler/output_file", KeyType::string, "null", "File."),

    block("/timers", "Timers."),
    block("/timers/throughput", "Samples per second."),
    no_effect("/timers/throughput/enabled", KeyType::boolean, "true", "Measures throughput.",
              kThroughput),
    no_effect("/timers/throughput/synchronized", KeyType::boolean, "true",
              "Synchronizes the device to measure.", kThroughput),
});

}  // namespace

std::span<const KeySpec> monitor_keys() { return kMonitorKeys; }

}  // namespace zerorun
