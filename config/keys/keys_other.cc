#include "config/keys/key_rows.h"

// DeepSpeed's sections for monitoring, profiling, elasticity, tuning and other kinds of
// parallelism.

namespace zerorun::keys {

namespace {

constexpr std::string_view kTunesAll =
    "`zerorun tune` tries stages, micro-batches, offloading and buckets one after another";
constexpr std::string_view kNoPipeline =
    "applies only to PipelineModule, which zerorun does not have";

// At most 2^31 samples, so that sums and products of batch sizes fit into 64 bits.
constexpr double kMaxSamples = 2147483648;

constexpr std::string_view kThroughput =
    "throughput is always measured, without synchronizing the device";

constexpr auto kOtherKeys = std::to_array<KeySpec>({
    block("/tensorboard", "TensorBoard event files.", "enabled"),
    key("enabled", boolean, "false",
        "Writes scalars of each step for TensorBoard, on rank 0; needs the package tensorboard."),
    key("output_path", string, R"("")",
        "Folder for the files; they are written to its subfolder job_name."),
    key("job_name", string, R"("DeepSpeedJobName")", "Name of the job."),

    block("/csv_monitor", "CSV files with one scalar each.", "enabled"),
    key("enabled", boolean, "false",
        "Rank 0 writes each scalar to its own CSV file, one line per step."),
    key("output_path", string, R"("")",
        "Folder for the files; they are written to its subfolder job_name."),
    key("job_name", string, R"("DeepSpeedJobName")", "Name of the job."),

    block("/wandb", "Reports to Weights & Biases.", "enabled"),
    key("enabled", boolean, "false", "Reports scalars of each step; needs the package wandb."),
    key("group", string, "null", "Name of the group of runs."),
    key("team", string, "null", "Name of the team."),
    key("project", string, R"("deepspeed")", "Name of the project."),

    block("/comet", "Reports to Comet.", "enabled"),
    key("enabled", boolean, "false", "Reports scalars of each step; needs the package comet_ml."),
    key("samples_log_interval", integer, "100", "Samples between two reports."),
    key("project", string, "null", "Name of the project."),
    key("workspace", string, "null", "Name of the workspace."),
    key("api_key", string, "null", "API key of the account."),
    key("experiment_name", string, "null", "Name of the experiment."),
    key("experiment_key", string, "null", "Key of the experiment."),
    key("online", boolean, "null",
        "true: reports while the job runs. false: writes an archive for later upload."),
    key("mode", string, "null", "Whether to create a new experiment or continue an existing one."),

    block("/comms_logger", "Logging of collectives.", "enabled"),
    key("enabled", boolean, "false",
        "Records every collective of the engine; deepspeed.comm.log_summary() and "
        "zerorun.metrics.log_summary() print the totals."),
    key("prof_all", boolean, "true", "Records all collectives."),
    key("prof_ops", strings, "[]", "Names of the collectives to record."),
    key("verbose", boolean, "false", "Prints a line for each collective."),
    key("debug", boolean, "false", "Includes the calling function in these lines."),

    block("/flops_profiler", "Counts floating point operations (FLOPs) per module.", "enabled"),
    key("enabled", boolean, "false",
        "Rank 0 prints parameters, FLOPs and latency of each module in the forward pass of one "
        "step. Also turns wall_clock_breakdown on."),
    key("recompute_fwd_factor", number, "0",
        "Number of additional forward passes due to recomputation, for the FLOPs of the backward "
        "pass."),
    key("profile_step", integer, "1", "Number of the step to profile."),
    key("module_depth", integer, "-1", "Maximum depth of the modules to print; -1: all."),
    key("top_modules", integer, "1", "Number of modules to print per depth."),
    key("detailed", boolean, "true", "Prints the figures of every module."),
    key("output_file", string, "null", "File for the profile. Not given: standard output."),

    block("/timers", "Timing of steps."),
    block("/timers/throughput", "Throughput in samples per second."),
    no_effect("enabled", boolean, "true", "Measures the throughput.", kThroughput),
    no_effect("synchronized", boolean, "true", "Synchronizes the device to measure.", kThroughput),

    block("/elasticity",
          "Computes a batch size that is divisible by many numbers of ranks, instead of using the "
          "batch keys. The rules are those of DeepSpeed up to 0.19.7; `zerorun config elastic` "
          "shows the result.",
          "enabled"),
    key("enabled", boolean, "false", "Turns this section on."),
    key("max_train_batch_size", integer.from(1, kMaxSamples), "2000",
        "Maximum batch size. Required."),
    key("micro_batch_sizes", integers.from(1, kMaxSamples), "[2,4,6]",
        "Micro-batch sizes to choose from. Required."),
    key("min_gpus", integer.from(1), "1", "Minimum number of ranks."),
    key("max_gpus", integer.from(1), "10000", "Maximum number of ranks."),
    key("num_gpus_per_node", integer.from(1), "1",
        "Number of ranks per host; version 0.2 uses only whole hosts."),
    key("model_parallel_size", integer.from(1), "1",
        "Number of ranks per host that work on the same data. Version 0.2 only."),
    key("prefer_larger_batch", boolean, "true",
        "Prefers the larger batch size among those that are divisible by equally many numbers of "
        "ranks."),
    key("ignore_non_elastic_batch_info", boolean, "false",
        "Ignores batch keys beside this section instead of reporting an error."),
    key("version", number, "0.2",
        "Version of the rules: 0.1 or 0.2; 0.2 also computes a batch size for other numbers of "
        "ranks."),
    no_effect("min_time", integer, "0",
              "Minimum minutes between two changes of the number of ranks.",
              "the scheduler decides when it restarts a job"),

    block("/autotuning", "Search for fast settings with `zerorun tune`."),
    no_effect("enabled", boolean, "false", "Searches before the training.",
              "a training does not search; run `zerorun tune` or `deepspeed --autotuning`"),
    key("results_dir", string, R"("autotuning_results")",
        "Folder for the trials, a table of them and the best configuration."),
    key("start_profile_step", integer, "3", "First step that is timed."),
    key("end_profile_step", integer, "5", "Last step that is timed; a trial ends after it."),
    key("metric", string.one_of("throughput|latency|flops"), R"("throughput")",
        "What to optimize: throughput or flops (both mean tokens or samples per second), or "
        "latency (the time of a step)."),
    key("tuner_early_stopping", integer, "5",
        "Number of trials without improvement after which the search stops."),
    key("tuner_num_trials", integer, "50", "Maximum number of trials."),
    key("arg_mappings", free_form, "null",
        "Name of the script's option that sets `train_micro_batch_size_per_gpu`."),
    key("max_train_batch_size", integer, "null", "Maximum batch size."),
    key("max_train_micro_batch_size_per_gpu", integer, "1024", "Maximum micro-batch size."),
    key("min_train_micro_batch_size_per_gpu", integer, "1", "Minimum micro-batch size."),
    key("num_tuning_micro_batch_sizes", integer, "3",
        "Number of micro-batch sizes to try; each is twice the previous one."),
    no_effect("fast", boolean, "true", "Shortens the search.", kTunesAll),
    no_effect("exps_dir", string, R"("autotuning_exps")", "Folder of experiments.",
              "trials are stored in results_dir"),
    no_effect("overwrite", boolean, "true", "Overwrites results.",
              "trials of the same names are replaced"),
    no_effect("metric_path", string, "null", "File with the metric of a trial.",
              "each trial has its own metrics file"),
    no_effect("tuner_type", string, R"("gridsearch")", "Search algorithm.", kTunesAll),
    no_effect("min_train_batch_size", integer, "1", "Minimum batch size.",
              "the batch size of the configuration is the minimum"),
    no_effect("mp_size", integer, "1", "Number of ranks per model replica.",
              "models are sharded, not split"),
    no_effect("model_info", free_form, "null", "Size of the model in parameters.",
              "the first trial tells it, or --model"),
    no_effect("model_info_path", string, "null", "File with the size of the model.",
              "the first trial tells it, or --model"),

    block("/pipeline", "Settings of pipeline parallelism."),
    no_effect("stages", integer | string, R"("auto")", "Number of pipeline stages.", kNoPipeline),
    no_effect("partition", string, R"("best")", "How layers are divided among stages.",
              kNoPipeline),
    no_effect("seed_layers", boolean, "false", "Seeds each layer separately.", kNoPipeline),
    no_effect("activation_checkpoint_interval", integer, "0",
              "Number of layers per activation checkpoint.", kNoPipeline),
    no_effect("pipe_partitioned", boolean, "true", "Shards activations between stages.",
              kNoPipeline),
    no_effect("grad_partitioned", boolean, "true", "Shards gradients between stages.", kNoPipeline),

    block("/progressive_layer_drop", "Skips layers during training.", "enabled"),
    removed("enabled", boolean, "false", "Skips layers."),
    not_yet("theta", number, "1", "Fraction of the layers that is kept at the end."),
    not_yet("gamma", number, "0.001", "Speed at which layers are dropped."),

    block("/eigenvalue", "Eigenvalues of the Hessian for quantization.", "enabled"),
    removed("enabled", boolean, "false", "Computes eigenvalues."),
    not_yet("verbose", boolean, "false", "Logs the eigenvalues."),
    not_yet("max_iter", integer, "100", "Maximum number of iterations."),
    not_yet("tol", number, "0.01", "Tolerance."),
    not_yet("stability", number, "1e-06", "Constant added to the divisor for numerical stability."),
    not_yet("gas_boundary_resolution", integer, "1", "Number of steps between two computations."),
    not_yet("layer_name", string, R"("bert.encoder.layer")",
            "Name of the module that contains the layers."),
    not_yet("layer_num", integer, "0", "Number of layers."),

    removed("/curriculum_learning", free_form, "null",
            "Increases the sequence length during training."),
    block("/data_efficiency", "Data sampling and routing.", "enabled"),
    not_yet("enabled", boolean, "false", "Turns this section on."),
    not_yet("seed", integer, "1234", "Seed of the sampler."),
    not_yet("data_sampling", free_form, "null",
            "Settings of curriculum learning and of the sampler."),
    not_yet("data_routing", free_form, "null", "Drops random tokens in the layers."),
    removed("/compression_training", free_form, "null", "Prunes and quantizes during training."),
    removed("/sparse_attention", free_form, "null", "Uses block-sparse attention."),
    removed("/quantize_training", free_form, "null", "Quantizes during training."),

    block("/hybrid_engine", "Generation inside a training job.", "enabled"),
    not_yet("enabled", boolean, "false", "Uses inference kernels for generation."),
    not_yet("max_out_tokens", integer, "512", "Maximum number of generated tokens."),
    not_yet("inference_tp_size", integer, "1",
            "Number of ranks that share one model for generation."),
    not_yet("release_inference_cache", boolean, "false", "Frees the cache after each generation."),
    not_yet("pin_parameters", boolean, "true", "Keeps parameters in the layout for inference."),
    not_yet("tp_gather_partition_size", integer, "8",
            "Number of layers that are gathered at once."),
    not_yet("enable_cuda_graph", boolean, "false", "Uses CUDA graphs for generation."),

    block("/tensor_parallel", "Splits layers over ranks.", "autotp_size"),
    not_yet("autotp_size", integer.from(0), "0",
            "Number of ranks that share a layer; 0 and 1: off.", {}, {.idle = "1"}),
    not_yet("dtype", string, R"("fp16")", "dtype of the model."),
    not_yet("tp_overlap_comm", boolean, "false", "Overlaps the all_reduce with matrix products."),
    not_yet("tp", free_form, "null", "Settings of the tensor-parallel group.", {},
            {.alias = "tensor_parallel"}),
    not_yet("partition_config", free_form, "null", "How each layer is split."),
    not_yet("preset_model", string, "null", "Name of a predefined way to split a model."),
    not_yet("keep_module_on_host", boolean, "false", "Loads modules to host memory first."),
    not_yet("replace_with_kernel_inject", boolean, "false", "Uses inference kernels.", {},
            {.alias = "kernel_inject"}),
    not_yet("/expert_parallel", free_form, "null", "Distributes experts over ranks."),
    not_yet("/weight_quantization", free_form, "null", "Quantizes the weights."),
    block("/compile", "Settings of torch.compile.", "deepcompile"),
    not_yet("deepcompile", boolean, "false",
            "Compiles ZeRO's communication into the model's graph."),
    not_yet("autoep_non_moe", boolean, "false", "Compiles the layers around expert layers."),
    not_yet("free_activation", boolean, "false", "Frees activations early."),
    not_yet("free_activation_threshold", integer, "10485760",
            "Size in bytes from which activations are freed early."),
    not_yet("offload_activation", boolean, "false", "Keeps activations in host memory."),
    not_yet("offload_activation_pin_memory", boolean, "true",
            "Uses page-locked host memory for offloaded activations."),
    not_yet("offload_opt_states", boolean, "false", "Keeps optimizer states in host memory."),
    not_yet("double_buffer", boolean, "true", "Uses two communication buffers."),
    not_yet("symmetric_memory", boolean, "false", "Uses symmetric memory for gathers."),
    not_yet("debug_log", boolean, "false", "Writes a debug log."),
    not_yet("offload_parameters", boolean, "false", "Keeps parameters in host memory."),
    not_yet("sync_before_reduce", boolean, "false", "Synchronizes before each reduction."),
    not_yet("sync_after_reduce", boolean, "false", "Synchronizes after each reduction."),
    not_yet("sync_before_allgather", boolean, "false", "Synchronizes before each gather."),
    not_yet("sync_after_allgather", boolean, "false", "Synchronizes after each gather."),
    not_yet("keep_int_input_tensors", boolean, "true", "Keeps integer input tensors."),
    not_yet("keep_all_input_tensors", boolean, "false", "Keeps all input tensors."),
    not_yet("passes", strings, "null", "Names of the compiler passes to run."),
});

}  // namespace

std::span<const KeySpec> other_keys() { return kOtherKeys; }

}  // namespace zerorun::keys
