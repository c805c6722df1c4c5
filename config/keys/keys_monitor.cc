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
  return with_gate(gate, key(pointer, type, fallback, doc));
}
constexpr KeySpec enables(std::string_view pointer, std::string_view doc) {
  return key(pointer, KeyType::boolean, "false", doc);
}

constexpr std::string_view kThroughput =
    "throughput is always measured, without synchronizing the device";

constexpr auto kMonitorKeys = std::to_array<KeySpec>({
    block("/tensorboard", "TensorBoard event files."),
    enables(
        kTensorboard,
        "Writes scalars of each step for TensorBoard, on rank 0; needs the package tensorboard."),
    in_block(kTensorboard, "/tensorboard/output_path", KeyType::string, R"("")",
             "Folder for the files; they are written to its subfolder job_name."),
    in_block(kTensorboard, "/tensorboard/job_name", KeyType::string, R"("DeepSpeedJobName")",
             "Name of the job."),

    block("/csv_monitor", "CSV files with one scalar each."),
    enables(kCsv, "Rank 0 writes each scalar to its own CSV file, one line per step."),
    in_block(kCsv, "/csv_monitor/output_path", KeyType::string, R"("")",
             "Folder for the files; they are written to its subfolder job_name."),
    in_block(kCsv, "/csv_monitor/job_name", KeyType::string, R"("DeepSpeedJobName")",
             "Name of the job."),

    block("/wandb", "Reports to Weights & Biases."),
    enables(kWandb, "Reports scalars of each step; needs the package wandb."),
    in_block(kWandb, "/wandb/group", KeyType::string, "null", "Name of the group of runs."),
    in_block(kWandb, "/wandb/team", KeyType::string, "null", "Name of the team."),
    in_block(kWandb, "/wandb/project", KeyType::string, R"("deepspeed")", "Name of the project."),

    block("/comet", "Reports to Comet."),
    enables(kComet, "Reports scalars of each step; needs the package comet_ml."),
    in_block(kComet, "/comet/samples_log_interval", KeyType::integer, "100",
             "Samples between two reports."),
    in_block(kComet, "/comet/project", KeyType::string, "null", "Name of the project."),
    in_block(kComet, "/comet/workspace", KeyType::string, "null", "Name of the workspace."),
    in_block(kComet, "/comet/api_key", KeyType::string, "null", "API key of the account."),
    in_block(kComet, "/comet/experiment_name", KeyType::string, "null", "Name of the experiment."),
    in_block(kComet, "/comet/experiment_key", KeyType::string, "null", "Key of the experiment."),
    in_block(kComet, "/comet/online", KeyType::boolean, "null",
             "true: reports while the job runs. false: writes an archive for later upload."),
    in_block(kComet, "/comet/mode", KeyType::string, "null",
             "Whether to create a new experiment or continue an existing one."),

    block("/comms_logger", "Logging of collectives."),
    enables(kComms,
            "Records every collective of the engine; deepspeed.comm.log_summary() and "
            "zerorun.metrics.log_summary() print the totals."),
    in_block(kComms, "/comms_logger/prof_all", KeyType::boolean, "true",
             "Records all collectives."),
    in_block(kComms, "/comms_logger/prof_ops", KeyType::strings, "[]",
             "Names of the collectives to record."),
    in_block(kComms, "/comms_logger/verbose", KeyType::boolean, "false",
             "Prints a line for each collective."),
    in_block(kComms, "/comms_logger/debug", KeyType::boolean, "false",
             "Includes the calling function in these lines."),

    block("/flops_profiler", "Counts floating point operations (FLOPs) per module."),
    enables(kFlops,
            "Rank 0 prints parameters, FLOPs and latency of each module in the forward pass of one "
            "step. Also turns wall_clock_breakdown on."),
    in_block(kFlops, "/flops_profiler/recompute_fwd_factor", KeyType::number, "0",
             "Number of additional forward passes due to recomputation, for the FLOPs of the "
             "backward pass."),
    in_block(kFlops, "/flops_profiler/profile_step", KeyType::integer, "1",
             "Number of the step to profile."),
    in_block(kFlops, "/flops_profiler/module_depth", KeyType::integer, "-1",
             "Maximum depth of the modules to print; -1: all."),
    in_block(kFlops, "/flops_profiler/top_modules", KeyType::integer, "1",
             "Number of modules to print per depth."),
    in_block(kFlops, "/flops_profiler/detailed", KeyType::boolean, "true",
             "Prints the figures of every module."),
    in_block(kFlops, "/flops_profiler/output_file", KeyType::string, "null",
             "File for the profile. Not given: standard output."),

    block("/timers", "Timing of steps."),
    block("/timers/throughput", "Throughput in samples per second."),
    no_effect("/timers/throughput/enabled", KeyType::boolean, "true", "Measures the throughput.",
              kThroughput),
    no_effect("/timers/throughput/synchronized", KeyType::boolean, "true",
              "Synchronizes the device to measure.", kThroughput),
});

}  // namespace

std::span<const KeySpec> monitor_keys() { return kMonitorKeys; }

}  // namespace zerorun
