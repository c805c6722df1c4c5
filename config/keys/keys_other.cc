#include <array>

#include "config/keys/key_table.h"

// Blocks of DeepSpeed for other kinds of parallelism, tuning and compilation.

namespace zerorun {

namespace {

constexpr std::string_view kElastic = "/elasticity/enabled";
constexpr std::string_view kPld = "/progressive_layer_drop/enabled";
constexpr std::string_view kEigen = "/eigenvalue/enabled";
constexpr std::string_view kData = "/data_efficiency/enabled";
constexpr std::string_view kHybrid = "/hybrid_engine/enabled";
constexpr std::string_view kTensor = "/tensor_parallel/autotp_size";
constexpr std::string_view kTunesAll =
    "stages, micro-batches, offloading and buckets are tried one after another";
constexpr std::string_view kNoPipeline = "concerns PipelineModule only, which zerorun has not";

// At most 2^31 samples, so that sums and products of batches fit 64 bits.
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

constexpr auto kOtherKeys = std::to_array<KeySpec>({
    block("/elasticity",
          "A batch size that many numbers of ranks divide, computed in place of the batch keys by "
          "the rules of DeepSpeed up to 0.19.7; `zerorun config elastic` shows it."),
    tuned(kElastic, KeyType::boolean, "false", "Computes the batch size."),
    elastic("/elasticity/max_train_batch_size", KeyType::integer, "2000", "Largest batch. Needed.",
            kSamples),
    elastic("/elasticity/micro_batch_sizes", KeyType::integers, "[2,4,6]",
            "Micro-batches to choose from. Needed.", kSamples),
    elastic("/elasticity/min_gpus", KeyType::integer, "1", "Fewest ranks.", kPositive),
    elastic("/elasticity/max_gpus", KeyType::integer, "10000", "Most ranks.", kPositive),
    elastic("/elasticity/num_gpus_per_node", KeyType::integer, "1",
            "Ranks of a host; version 0.2 counts whole hosts.", kPositive),
    elastic("/elasticity/model_parallel_size", KeyType::integer, "1",
            "Ranks of a host that share one data-parallel place. Version 0.2.", kPositive),
    elastic("/elasticity/prefer_larger_batch", KeyType::boolean, "true",
            "Of batches that equally many numbers divide, the larger."),
    elastic("/elasticity/ignore_non_elastic_batch_info", KeyType::boolean, "false",
            "Batch keys beside this section are no error, and have no effect."),
    elastic("/elasticity/version", KeyType::number, "0.2",
            "Of the rules: 0.1, or 0.2, which gives other numbers of ranks a batch too."),
    no_effect("/elasticity/min_time", KeyType::integer, "0",
              "Minutes between two changes of the ranks.",
              "a scheduler decides when it starts a job anew"),

    block("/autotuning", "Search for fast settings, by `zerorun tune`."),
    no_effect("/autotuning/enabled", KeyType::boolean, "false", "Searches before training.",
              "a training does not search: start `zerorun tune` or `deepspeed --autotuning`"),
    tuned("/autotuning/results_dir", KeyType::string, R"("autotuning_results")",
          "Folder of the trials, their table and the best configuration."),
    tuned("/autotuning/start_profile_step", KeyType::integer, "3", "First step timed."),
    tuned("/autotuning/end_profile_step", KeyType::integer, "5",
          "Last step timed, with which a trial ends."),
    with_choices(tuned("/autotuning/metric", KeyType::string, R"("throughput")",
                       "What is best: most tokens or samples per second, or the shortest step "
                       "(latency)."),
                 "throughput|latency|flops"),
    tuned("/autotuning/tuner_early_stopping", KeyType::integer, "5",
          "Trials without progress before it stops."),
    tuned("/autotuning/tuner_num_trials", KeyType::integer, "50", "Trials at most."),
    tuned("/autotuning/arg_mappings", KeyType::free_form, "null",
          "Option of the script for `train_micro_batch_size_per_gpu`."),
    tuned("/autotuning/max_train_batch_size", KeyType::integer, "null", "Largest batch."),
    tuned("/autotuning/max_train_micro_batch_size_per_gpu", KeyType::integer, "1024",
          "Largest micro-batch."),
    tuned("/autotuning/min_train_micro_batch_size_per_gpu", KeyType::integer, "1",
          "Smallest micro-batch."),
    tuned("/autotuning/num_tuning_micro_batch_sizes", KeyType::integer, "3",
          "Micro-batches tried, each twice the one before."),
    no_effect("/autotuning/fast", KeyType::boolean, "true", "Shorter search.", kTunesAll),
    no_effect("/autotuning/exps_dir", KeyType::string, R"("autotuning_exps")",
              "Folder of experiments.", "trials lie in results_dir"),
    no_effect("/autotuning/overwrite", KeyType::boolean, "true", "Overwrites results.",
              "trials of the same names are replaced"),
    no_effect("/autotuning/metric_path", KeyType::string, "null", "File of the metric.",
              "trials have metrics files of their own"),
    no_effect("/autotuning/tuner_type", KeyType::string, R"("gridsearch")", "Kind of search.",
              kTunesAll),
    no_effect("/autotuning/min_train_batch_size", KeyType::integer, "1", "Smallest batch.",
              "the batch of the configuration is the smallest"),
    no_effect("/autotuning/mp_size", KeyType::integer, "1", "Ranks per model replica.",
              "models are sharded, not split"),
    no_effect("/autotuning/model_info", KeyType::free_form, "null", "Size of the model.",
              "the first trial tells it, or --model"),
    no_effect("/autotuning/model_info_path", KeyType::string, "null", "File with it.",
              "the first trial tells it, or --model"),

    block("/pipeline", "Pipeline parallelism."),
    no_effect("/pipeline/stages", KeyType::integer | KeyType::string, R"("auto")", "Stages.",
              kNoPipeline),
    no_effect("/pipeline/partition", KeyType::string, R"("best")", "How layers are divided.",
              kNoPipeline),
    no_effect("/pipeline/seed_layers", KeyType::boolean, "false", "Seeds each layer.", kNoPipeline),
    no_effect("/pipeline/activation_checkpoint_interval", KeyType::integer, "0",
              "Layers per activation checkpoint.", kNoPipeline),
    no_effect("/pipeline/pipe_partitioned", KeyType::boolean, "true",
              "Shards activations between stages.", kNoPipeline),
    no_effect("/pipeline/grad_partitioned", KeyType::boolean, "true",
              "Shards gradients between stages.", kNoPipeline),

    block("/progressive_layer_drop", "Skips layers during training."),
    removed(kPld, KeyType::boolean, "false", "Skips layers."),
    gated(kPld, "/progressive_layer_drop/theta", KeyType::number, "1", "Kept part at the end."),
    gated(kPld, "/progressive_layer_drop/gamma", KeyType::number, "0.001", "Speed of the change."),

    block("/eigenvalue", "Eigenvalues of the Hessian for quantization."),
    removed(kEigen, KeyType::boolean, "false", "Computes eigenvalues."),
    gated(kEigen, "/eigenvalue/verbose", KeyType::boolean, "false", "Logs them."),
    gated(kEigen, "/eigenvalue/max_iter", KeyType::integer, "100", "Iterations."),
    gated(kEigen, "/eigenvalue/tol", KeyType::number, "0.01", "Tolerance."),
    gated(kEigen, "/eigenvalue/stability", KeyType::number, "1e-06", "Added to the divisor."),
    gated(kEigen, "/eigenvalue/gas_boundary_resolution", KeyType::integer, "1",
          "Steps between two computations."),
    gated(kEigen, "/eigenvalue/layer_name", KeyType::string, R"("bert.encoder.layer")",
          "Where the layers are."),
    gated(kEigen, "/eigenvalue/layer_num", KeyType::integer, "0", "Number of layers."),

    removed("/curriculum_learning", KeyType::free_form, "null", "Growing sequence length."),
    block("/data_efficiency", "Data sampling and routing."),
    not_yet(kData, KeyType::boolean, "false", "Uses the settings below."),
    gated(kData, "/data_efficiency/seed", KeyType::integer, "1234", "Seed of the sampler."),
    gated(kData, "/data_efficiency/data_sampling", KeyType::free_form, "null",
          "Curriculum and sampler."),
    gated(kData, "/data_efficiency/data_routing", KeyType::free_form, "null",
          "Random layer token dropping."),
    removed("/compression_training", KeyType::free_form, "null", "Pruning and quantization."),
    removed("/sparse_attention", KeyType::free_form, "null", "Block-sparse attention."),
    removed("/quantize_training", KeyType::free_form, "null", "Quantization while training."),

    block("/hybrid_engine", "Generation inside a training job."),
    not_yet(kHybrid, KeyType::boolean, "false", "Switches to inference kernels to generate."),
    gated(kHybrid, "/hybrid_engine/max_out_tokens", KeyType::integer, "512",
          "Longest generated text, in tokens."),
    gated(kHybrid, "/hybrid_engine/inference_tp_size", KeyType::integer, "1",
          "Ranks that share one model when generating."),
    gated(kHybrid, "/hybrid_engine/release_inference_cache", KeyType::boolean, "false",
          "Frees the cache after generating."),
    gated(kHybrid, "/hybrid_engine/pin_parameters", KeyType::boolean, "true",
          "Keeps parameters in inference layout."),
    gated(kHybrid, "/hybrid_engine/tp_gather_partition_size", KeyType::integer, "8",
          "Layers gathered at once."),
    gated(kHybrid, "/hybrid_engine/enable_cuda_graph", KeyType::boolean, "false",
          "CUDA graphs for generation."),

    block("/tensor_parallel", "Splitting layers over ranks."),
    with_idle("1", with_range(not_yet(kTensor, KeyType::integer, "0",
                                      "Ranks that share a layer; 0 and 1: off."),
                              kNonNegative)),
    gated(kTensor, "/tensor_parallel/dtype", KeyType::string, R"("fp16")", "dtype of the model."),
    gated(kTensor, "/tensor_parallel/tp_overlap_comm", KeyType::boolean, "false",
          "Overlaps all_reduce and matrix products."),
    {.pointer = "/tensor_parallel/tp",
     .type = KeyType::free_form,
     .status = KeyStatus::not_yet,
     .doc = "Ranks of the tensor-parallel group.",
     .alias = "tensor_parallel",
     .gate = kTensor},
    gated(kTensor, "/tensor_parallel/partition_config", KeyType::free_form, "null",
          "How each layer is split."),
    gated(kTensor, "/tensor_parallel/preset_model", KeyType::string, "null",
          "Name of a known way to split."),
    gated(kTensor, "/tensor_parallel/keep_module_on_host", KeyType::boolean, "false",
          "Loads to host memory first."),
    {.pointer = "/tensor_parallel/replace_with_kernel_inject",
     .type = KeyType::boolean,
     .fallback = "false",
     .status = KeyStatus::not_yet,
     .doc = "Inference kernels.",
     .alias = "kernel_inject",
     .gate = kTensor},
    not_yet("/expert_parallel", KeyType::free_form, "null", "Experts on different ranks."),
    not_yet("/weight_quantization", KeyType::free_form, "null", "Quantized weights."),
});

}  // namespace

std::span<const KeySpec> other_keys() { return kOtherKeys; }

}  // namespace zerorun
