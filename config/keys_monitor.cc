#include <array>

#include "config/key_table.h"

// Monitoring and profiling.

namespace zerorun {

namespace {

constexpr std::string_view kInstead = "`train --metrics FILE` writes one JSON object per step";
constexpr std::string_view kTensorboard = "/tensorboard/enabled";
constexpr std::string_view kCsv = "/csv_monitor/enabled";
constexpr std::string_view kWandb = "/wandb/enabled";
constexpr std::string_view kComet = "/comet/enabled";
constexpr std::string_view kComms = "/comms_logger/enabled";
constexpr std::string_view kFlops = "/flops_profiler/enabled";
constexpr std::string_view kThroughput =
    "throughput is always measured, without synchronizing the device";

constexpr auto kMonitorKeys = std::to_array<KeySpec>({
    block("/tensorboard", "TensorBoard event files."),
    not_yet(kTensorboard, KeyType::boolean, "false", "Writes event files.", kInstead),
    gated(kTensorboard, "/tensorboard/output_path", KeyType::string, R"("")", "Folder."),
    gated(kTensorboard, "/tensorboard/job_name", KeyType::string, R"("DeepSpeedJobName")",
          "Name of the job."),

    block("/csv_monitor", "One CSV file per metric."),
    not_yet(kCsv, KeyType::boolean, "false", "Writes CSV files.", kInstead),
    gated(kCsv, "/csv_monitor/output_path", KeyType::string, R"("")", "Folder."),
    gated(kCsv, "/csv_monitor/job_name", KeyType::string, R"("DeepSpeedJobName")",
          "Name of the job."),

    block("/wandb", "Weights & Biases."),
    not_yet(kWandb, KeyType::boolean, "false", "Reports to Weights & Biases.", kInstead),
    gated(kWandb, "/wandb/group", KeyType::string, "null", "Group of runs."),
    gated(kWandb, "/wandb/team", KeyType::string, "null", "Team."),
    gated(kWandb, "/wandb/project", KeyType::string, R"("deepspeed")", "Project."),

    block("/comet", "Comet."),
    not_yet(kComet, KeyType::boolean, "false", "Reports to Comet.", kInstead),
    gated(kComet, "/comet/samples_log_interval", KeyType::integer, "100",
          "Samples between two reports."),
    gated(kComet, "/comet/project", KeyType::string, "null", "Project."),
    gated(kComet, "/comet/workspace", KeyType::string, "null", "Workspace."),
    gated(kComet, "/comet/api_key", KeyType::string, "null", "API key."),
    gated(kComet, "/comet/experiment_name", KeyType::string, "null", "Name of the experiment."),
    gated(kComet, "/comet/experiment_key", KeyType::string, "null", "Key of the experiment."),
    gated(kComet, "/comet/online", KeyType::boolean, "null", "Reports while the job runs."),
    gated(kComet, "/comet/mode", KeyType::string, "null", "New or existing experiment."),

    block("/comms_logger", "Log of collectives."),
    not_yet(kComms, KeyType::boolean, "false", "Logs each collective.",
            "/wall_clock_breakdown shows the time of communication"),
    gated(kComms, "/comms_logger/prof_all", KeyType::boolean, "true", "All collectives."),
    gated(kComms, "/comms_logger/prof_ops", KeyType::strings, "[]", "Names of collectives."),
    gated(kComms, "/comms_logger/verbose", KeyType::boolean, "false", "One line each."),
    gated(kComms, "/comms_logger/debug", KeyType::boolean, "false", "Names the caller."),

    block("/flops_profiler", "Profile of floating point operations per module."),
    not_yet(kFlops, KeyType::boolean, "false", "Profiles one step."),
    gated(kFlops, "/flops_profiler/recompute_fwd_factor", KeyType::number, "0",
          "Forward passes that recomputation adds."),
    gated(kFlops, "/flops_profiler/profile_step", KeyType::integer, "1", "Step to profile."),
    gated(kFlops, "/flops_profiler/module_depth", KeyType::integer, "-1",
          "Depth of printed modules; -1: all."),
    gated(kFlops, "/flops_profiler/top_modules", KeyType::integer, "1", "Modules per depth."),
    gated(kFlops, "/flops_profiler/detailed", KeyType::boolean, "true", "Prints each module."),
    gated(kFlops, "/flops_profiler/output_file", KeyType::string, "null", "File."),

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
