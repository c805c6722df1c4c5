#include <array>

#include "config/keys/key_table.h"

// DeepSpeed's sections for elasticity, tuning and other kinds of parallelism.

namespace zerorun {

namespace {

constexpr std::string_view kElastic = "/elasticity/enabled";
constexpr std::string_view kPld = "/progressive_layer_drop/enabled";
constexpr std::string_view kEigen = "/eigenvalue/enabled";
constexpr std::string_view kData = "/data_efficiency/enabled";
constexpr std::string_view kHybrid = "/hybrid_engine/enabled";
constexpr std::string_view kTensor = "/tensor_parallel/autotp_size";
constexpr std::string_view kTunesAll =
    "`zerorun tune` tries stages, micro-batches, offloading and buckets one after another";
constexpr std::string_view kNoPipeline =
    "applies only to PipelineModule, which zerorun does not have";

// At most 2^31 samples, so that sums and products of batch sizes fit into 64 bits.
constexpr KeyRange kSamples{.low = 1, .high = 2147483648};

// A key that `zerorun tune` reads.
constexpr KeySpec tuned(std::string_view pointer, unsigned type, std::string_view fallback,
                        std::string_view doc) {
  return {.pointer = pointer, .type = type, .fallback = fallback, .doc = doc};
}
// A key that the rules of elasticity read.
constexpr KeySpec elastic(std::string_view pointer, unsigned type, std::string_view fallback,
                          std::string_view doc, KeyRange range = {}) {
  return with_range(with_gate(kElastic, tuned(pointer, type, fallback, doc)), range);
}
constexpr std::string_view kCompile = "/compile/deepcompile";

constexpr auto kOtherKeys = std::to_array<KeySpec>({
    block("/elasticity",
          "Computes a batch size that is divisible by many numbers of ranks, instead of using the "
          "batch keys. The rules are those of DeepSpeed up to 0.19.7; `zerorun config elastic` "
          "shows the result."),
    tuned(kElastic, KeyType::boolean, "false", "Turns this section on."),
    elastic("/elasticity/max_train_batch_size", KeyType::integer, "2000",
            "Maximum batch size. Required.", kSamples),
    elastic("/elasticity/micro_batch_sizes", KeyType::integers, "[2,4,6]",
            "Micro-batch sizes to choose from. Required.", kSamples),
    elastic("/elasticity/min_gpus", KeyType::integer, "1", "Minimum number of ranks.", kPositive),
    elastic("/elasticity/max_gpus", KeyType::integer, "10000", "Maximum number of ranks.",
            kPositive),
    elastic("/elasticity/num_gpus_per_node", KeyType::integer, "1",
            "Number of ranks per host; version 0.2 uses only whole hosts.", kPositive),
    elastic("/elasticity/model_parallel_size", KeyType::integer, "1",
            "Number of ranks per host that work on the same data. Version 0.2 only.", kPositive),
    elastic("/elasticity/prefer_larger_batch", KeyType::boolean, "true",
            "Prefers the larger batch size among those that are divisible by equally many numbers "
            "of ranks."),
    elastic("/elasticity/ignore_non_elastic_batch_info", KeyType::boolean, "false",
            "Ignores batch keys beside this section instead of reporting an error."),
    elastic("/elasticity/version", KeyType::number, "0.2",
            "Version of the rules: 0.1 or 0.2; 0.2 also computes a batch size for other numbers of "
            "ranks."),
    no_effect("/elasticity/min_time", KeyType::integer, "0",
              "Minimum minutes between two changes of the number of ranks.",
              "the scheduler decides when it restarts a job"),

    block("/autotuning", "Search for fast settings with `zerorun tune`."),
    no_effect("/autotuning/enabled", KeyType::boolean, "false", "Searches before the training.",
              "a training does not search; run `zerorun tune` or `deepspeed --autotuning`"),
    tuned("/autotuning/results_dir", KeyType::string, R"("autotuning_results")",
          "Folder for the trials, a table of them and the best configuration."),
    tuned("/autotuning/start_profile_step", KeyType::integer, "3", "First step that is timed."),
    tuned("/autotuning/end_profile_step", KeyType::integer, "5",
          "Last step that is timed; a trial ends after it."),
    with_choices(tuned("/autotuning/metric", KeyType::string, R"("throughput")",
                       "What to optimize: throughput or flops (both mean tokens or samples per "
                       "second), or latency (the time of a step)."),
                 "throughput|latency|flops"),
    tuned("/autotuning/tuner_early_stopping", KeyType::integer, "5",
          "Number of trials without improvement after which the search stops."),
    tuned("/autotuning/tuner_num_trials", KeyType::integer, "50", "Maximum number of trials."),
    tuned("/autotuning/arg_mappings", KeyType::free_form, "null",
          "Name of the script's option that sets `train_micro_batch_size_per_gpu`."),
    tuned("/autotuning/max_train_batch_size", KeyType::integer, "null", "Maximum batch size."),
    tuned("/autotuning/max_train_micro_batch_size_per_gpu", KeyType::integer, "1024",
          "Maximum micro-batch size."),
    tuned("/autotuning/min_train_micro_batch_size_per_gpu", KeyType::integer, "1",
          "Minimum micro-batch size."),
    tuned("/autotuning/num_tuning_micro_batch_sizes", KeyType::integer, "3",
          "Number of micro-batch sizes to try; each is twice the previous one."),
    no_effect("/autotuning/fast", KeyType::boolean, "true", "Shortens the search.", kTunesAll),
    no_effect("/autotuning/exps_dir", KeyType::string, R"("autotuning_exps")",
              "Folder of experiments.", "trials are stored in results_dir"),
    no_effect("/autotuning/overwrite", KeyType::boolean, "true", "Overwrites results.",
              "trials of the same names are replaced"),
    no_effect("/autotuning/metric_path", KeyType::string, "null",
              "File with the metric of a trial.", "each trial has its own metrics file"),
    no_effect("/autotuning/tuner_type", KeyType::string, R"("gridsearch")", "Search algorithm.",
              kTunesAll),
    no_effect("/autotuning/min_train_batch_size", KeyType::integer, "1", "Minimum batch size.",
              "the batch size of the configuration is the minimum"),
    no_effect("/autotuning/mp_size", KeyType::integer, "1", "Number of ranks per model replica.",
              "models are sharded, not split"),
    no_effect("/autotuning/model_info", KeyType::free_form, "null",
              "Size of the model in parameters.", "the first trial tells it, or --model"),
    no_effect("/autotuning/model_info_path", KeyType::string, "null",
              "File with the size of the model.", "the first trial tells it, or --model"),

    block("/pipeline", "Settings of pipeline parallelism."),
    no_effect("/pipeline/stages", KeyType::integer | KeyType::string, R"("auto")",
              "Number of pipeline stages.", kNoPipeline),
    no_effect("/pipeline/partition", KeyType::string, R"("best")",
              "How layers are divided among stages.", kNoPipeline),
    no_effect("/pipeline/seed_layers", KeyType::boolean, "false", "Seeds each layer separately.",
              kNoPipeline),
    no_effect("/pipeline/activation_checkpoint_interval", KeyType::integer, "0",
              "Number of layers per activation checkpoint.", kNoPipeline),
    no_effect("/pipeline/pipe_partitioned", KeyType::boolean, "true",
              "Shards activations between stages.", kNoPipeline),
    no_effect("/pipeline/grad_partitioned", KeyType::boolean, "true",
              "Shards gradients between stages.", kNoPipeline),

    block("/progressive_layer_drop", "Skips layers during training."),
    removed(kPld, KeyType::boolean, "false", "Skips layers."),
    gated(kPld, "/progressive_layer_drop/theta", KeyType::number, "1",
          "Fraction of the layers that is kept at the end."),
    gated(kPld, "/progressive_layer_drop/gamma", KeyType::number, "0.001",
          "Speed at which layers are dropped."),

    block("/eigenvalue", "Eigenvalues of the Hessian for quantization."),
    removed(kEigen, KeyType::boolean, "false", "Computes eigenvalues."),
    gated(kEigen, "/eigenvalue/verbose", KeyType::boolean, "false", "Logs the eigenvalues."),
    gated(kEigen, "/eigenvalue/max_iter", KeyType::integer, "100", "Maximum number of iterations."),
    gated(kEigen, "/eigenvalue/tol", KeyType::number, "0.01", "Tolerance."),
    gated(kEigen, "/eigenvalue/stability", KeyType::number, "1e-06",
          "Constant added to the divisor for numerical stability."),
    gated(kEigen, "/eigenvalue/gas_boundary_resolution", KeyType::integer, "1",
          "Number of steps between two computations."),
    gated(kEigen, "/eigenvalue/layer_name", KeyType::string, R"("bert.encoder.layer")",
          "Name of the module that contains the layers."),
    gated(kEigen, "/eigenvalue/layer_num", KeyType::integer, "0", "Number of layers."),

    removed("/curriculum_learning", KeyType::free_form, "null",
            "Increases the sequence length during training."),
    block("/data_efficiency", "Data sampling and routing."),
    not_yet(kData, KeyType::boolean, "false", "Turns this section on."),
    gated(kData, "/data_efficiency/seed", KeyType::integer, "1234", "Seed of the sampler."),
    gated(kData, "/data_efficiency/data_sampling", KeyType::free_form, "null",
          "Settings of curriculum learning and of the sampler."),
    gated(kData, "/data_efficiency/data_routing", KeyType::free_form, "null",
          "Drops random tokens in the layers."),
    removed("/compression_training", KeyType::free_form, "null",
            "Prunes and quantizes during training."),
    removed("/sparse_attention", KeyType::free_form, "null", "Uses block-sparse attention."),
    removed("/quantize_training", KeyType::free_form, "null", "Quantizes during training."),

    block("/hybrid_engine", "Generation inside a training job."),
    not_yet(kHybrid, KeyType::boolean, "false", "Uses inference kernels for generation."),
    gated(kHybrid, "/hybrid_engine/max_out_tokens", KeyType::integer, "512",
          "Maximum number of generated tokens."),
    gated(kHybrid, "/hybrid_engine/inference_tp_size", KeyType::integer, "1",
          "Number of ranks that share one model for generation."),
    gated(kHybrid, "/hybrid_engine/release_inference_cache", KeyType::boolean, "false",
          "Frees the cache after each generation."),
    gated(kHybrid, "/hybrid_engine/pin_parameters", KeyType::boolean, "true",
          "Keeps parameters in the layout for inference."),
    gated(kHybrid, "/hybrid_engine/tp_gather_partition_size", KeyType::integer, "8",
          "Number of layers that are gathered at once."),
    gated(kHybrid, "/hybrid_engine/enable_cuda_graph", KeyType::boolean, "false",
          "Uses CUDA graphs for generation."),

    block("/tensor_parallel", "Splits layers over ranks."),
    with_idle("1", with_range(not_yet(kTensor, KeyType::integer, "0",
                                      "Number of ranks that share a layer; 0 and 1: off."),
                              kNonNegative)),
    gated(kTensor, "/tensor_parallel/dtype", KeyType::string, R"("fp16")", "dtype of the model."),
    gated(kTensor, "/tensor_parallel/tp_overlap_comm", KeyType::boolean, "false",
          "Overlaps the all_reduce with matrix products."),
    {.pointer = "/tensor_parallel/tp",
     .type = KeyType::free_form,
     .status = KeyStatus::not_yet,
     .doc = "Settings of the tensor-parallel group.",
     .alias = "tensor_parallel",
     .gate = kTensor},
    gated(kTensor, "/tensor_parallel/partition_config", KeyType::free_form, "null",
          "How each layer is split."),
    gated(kTensor, "/tensor_parallel/preset_model", KeyType::string, "null",
          "Name of a predefined way to split a model."),
    gated(kTensor, "/tensor_parallel/keep_module_on_host", KeyType::boolean, "false",
          "Loads modules to host memory first."),
    {.pointer = "/tensor_parallel/replace_with_kernel_inject",
     .type = KeyType::boolean,
     .fallback = "false",
     .status = KeyStatus::not_yet,
     .doc = "Uses inference kernels.",
     .alias = "kernel_inject",
     .gate = kTensor},
    not_yet("/expert_parallel", KeyType::free_form, "null", "Distributes experts over ranks."),
    not_yet("/weight_quantization", KeyType::free_form, "null", "Quantizes the weights."),
    block("/compile", "Settings of torch.compile."),
    not_yet(kCompile, KeyType::boolean, "false",
            "Compiles ZeRO's communication into the model's graph."),
    gated(kCompile, "/compile/autoep_non_moe", KeyType::boolean, "false",
          "Compiles the layers around expert layers."),
    gated(kCompile, "/compile/free_activation", KeyType::boolean, "false",
          "Frees activations early."),
    gated(kCompile, "/compile/free_activation_threshold", KeyType::integer, "10485760",
          "Size in bytes from which activations are freed early."),
    gated(kCompile, "/compile/offload_activation", KeyType::boolean, "false",
          "Keeps activations in host memory."),
    gated(kCompile, "/compile/offload_activation_pin_memory", KeyType::boolean, "true",
          "Uses page-locked host memory for offloaded activations."),
    gated(kCompile, "/compile/offload_opt_states", KeyType::boolean, "false",
          "Keeps optimizer states in host memory."),
    gated(kCompile, "/compile/double_buffer", KeyType::boolean, "true",
          "Uses two communication buffers."),
    gated(kCompile, "/compile/symmetric_memory", KeyType::boolean, "false",
          "Uses symmetric memory for gathers."),
    gated(kCompile, "/compile/debug_log", KeyType::boolean, "false", "Writes a debug log."),
    gated(kCompile, "/compile/offload_parameters", KeyType::boolean, "false",
          "Keeps parameters in host memory."),
    gated(kCompile, "/compile/sync_before_reduce", KeyType::boolean, "false",
          "Synchronizes before each reduction."),
    gated(kCompile, "/compile/sync_after_reduce", KeyType::boolean, "false",
          "Synchronizes after each reduction."),
    gated(kCompile, "/compile/sync_before_allgather", KeyType::boolean, "false",
          "Synchronizes before each gather."),
    gated(kCompile, "/compile/sync_after_allgather", KeyType::boolean, "false",
          "Synchronizes after each gather."),
    gated(kCompile, "/compile/keep_int_input_tensors", KeyType::boolean, "true",
          "Keeps integer input tensors."),
    gated(kCompile, "/compile/keep_all_input_tensors", KeyType::boolean, "false",
          "Keeps all input tensors."),
    gated(kCompile, "/compile/passes", KeyType::strings, "null",
          "Names of the compiler passes to run."),
});

}  // namespace

std::span<const KeySpec> other_keys() { return kOtherKeys; }

}  // namespace zerorun
