#include "config/keys/key_rows.h"

namespace zerorun::keys {

namespace {

constexpr std::string_view kSameCost =
    "zerorun's collectives over whole buckets already cost the least";

template <auto Member>
constexpr KeyBinding loco = {
    .set =
        [](Config& config, const JsonNode& value) {
          if (!config.zero.loco) config.zero.loco.emplace();
          read_value(value, (*config.zero.loco).*Member);
        },
    .get =
        [](const Config& config) {
          return config.zero.loco ? write_value((*config.zero.loco).*Member) : "null";
        },
};

constexpr KeyBinding kMicsShardSize{
    .set =
        [](Config& config, const JsonNode& value) {
          if (value.number > 0) read_value(value, config.zero.shard_group_size);
        },
    .get =
        [](const Config& config) {
          return std::to_string(config.zero.shard_group_size > 0 ? config.zero.shard_group_size
                                                                 : -1);
        },
};

constexpr auto kZeroKeys = std::to_array<KeySpec>({
    key("/zero_optimization", object | boolean, "null",
        "What is sharded over the ranks, and how it is communicated. `true`, an older form, means "
        "stage 1."),
    key("stage", integer.from(0, 3), "0",
        "0: nothing is sharded. 1: optimizer states are sharded. 2: gradients, too. 3: parameters, "
        "too.",
        zero<&ZeroConfig::stage>, {.nickname = "zero_stage"}),
    key("reduce_bucket_size", integer.from(0), "500000000",
        "Maximum number of gradient elements per reduction (stages 0 to 2); 0: each parameter is "
        "reduced separately. On GPUs the default means 100 MB.",
        zero<&ZeroConfig::reduce_bucket_size>),
    no_effect("allgather_bucket_size", integer.from(0), "500000000",
              "Maximum number of elements of updated parameters per gather (stages 1 and 2).",
              "parameters are gathered in the buckets of reduce_bucket_size", {},
              zero<&ZeroConfig::allgather_bucket_size>),
    key("overlap_comm", boolean, "null",
        "Overlaps reductions and gathers with the computation of forward and backward. Not given: "
        "true on GPUs, on several hosts and at stage 3; else false.",
        zero<&ZeroConfig::overlap_comm>),
    key("stage3_prefetch_bucket_size", integer.from(0), "50000000",
        "Number of parameter elements to prefetch (stage 3). The next module is always prefetched, "
        "whatever its size, unless this is 0.",
        zero<&ZeroConfig::prefetch_bucket_size>, {.alias = "prefetch_bucket_size"}),
    key("stage3_param_persistence_threshold", integer.from(0), "100000",
        "Parameters of up to this many elements stay gathered (stage 3).",
        zero<&ZeroConfig::param_persistence_threshold>, {.alias = "param_persistence_threshold"}),
    key("stage3_model_persistence_threshold", integer.from(0), "9223372036854775807",
        "Maximum total number of elements of the parameters that stay gathered (stage 3).",
        zero<&ZeroConfig::model_persistence_threshold>, {.alias = "model_persistence_threshold"}),
    key("stage3_max_live_parameters", integer.from(0), "1000000000",
        "Maximum number of elements that are gathered at the same time (stage 3). If it is less "
        "than two modules have, gathers do not overlap with computation.",
        zero<&ZeroConfig::max_live_parameters>, {.alias = "max_live_parameters"}),
    key("stage3_max_reuse_distance", integer.from(0), "1000000000",
        "A parameter stays gathered when it is used again within this many elements (stage 3).",
        zero<&ZeroConfig::max_reuse_distance>, {.alias = "max_reuse_distance"}),

    always_on("contiguous_gradients", "true",
              "Keeps gradients in one contiguous buffer per bucket."),
    always_on("reduce_scatter", "true",
              "Each rank receives only the reduced gradients of its shard (stages 1 to 3)."),
    no_effect("use_multi_rank_bucket_allreduce", boolean, "true",
              "Reduces a whole bucket instead of one owner's part at a time.", kSameCost),
    no_effect("allgather_partitions", boolean, "true",
              "Gathers updated parameters instead of broadcasting them.", kSameCost),
    always_on("load_from_fp32_weights", "true",
              "A resumed job continues from the fp32 master parameters."),
    always_on("elastic_checkpoint", "false",
              "Checkpoints can be loaded with another number of ranks."),
    key("sub_group_size", integer.from(0), "1000000000",
        "Maximum number of elements of offloaded states that are copied and updated at once; "
        "limited to the range from 256 to 4 Mi; 0: the default. Without offloading, a step is one "
        "pass over each shard.",
        bind_unless_zero<&Config::offload, &OffloadConfig::sub_group_size>),
    always_on("stage3_gather_16bit_weights_on_model_save", "false",
              "The full model can be saved at every stage, without any rank holding all of it.",
              {.alias = "gather_16bit_weights_on_model_save"}),
    deprecated("stage3_gather_fp16_weights_on_model_save", boolean, "false",
               "Older name of stage3_gather_16bit_weights_on_model_save.",
               "/zero_optimization/stage3_gather_16bit_weights_on_model_save"),
    pytorch("stage3_module_granularity_threshold", integer.from(0), "0",
            "Modules with at most this many elements per contained module are gathered as a whole, "
            "like those of leaf_module; 0: none.",
            {.alias = "module_granularity_threshold"}),
    no_effect("stage3_use_all_reduce_for_fetch_params", boolean, "false",
              "Gathers with an all_reduce instead of an all_gather.", kSameCost,
              {.alias = "use_all_reduce_for_fetch_params"}),
    no_effect("stage3_allgather_sequential", boolean, "false", "Gathers one parameter at a time.",
              "a module's parameters are one bucket", {.alias = "allgather_sequential"}),
    always_on("ignore_unused_parameters", "true",
              "The gradient of an unused parameter counts as zero, at every stage."),
    removed("legacy_stage1", boolean, "false", "DeepSpeed's first stage 1.", "use stage 1"),
    no_effect("round_robin_gradients", boolean, "false", "Assigns parameters to ranks in turn.",
              "every bucket is split evenly over all ranks"),
    key("zero_hpz_partition_size", integer.from(0), "1",
        "ZeRO++ (hpZ): number of neighbouring ranks, usually those of a host, over which the "
        "parameters are partitioned a second time (stage 3). The first gather after a step writes "
        "this secondary partition; later gathers read it, so they communicate only among these "
        "ranks. The value must divide the number of ranks of the first partition. 1: no hpZ. "
        "\"auto\": the ranks of a host. No effect if all ranks are on one host.",
        bind_unless_zero<&Config::zero, &ZeroConfig::hpz_partition_size>),
    key("zero_quantized_weights", boolean, "false",
        "ZeRO++ (qwZ): gathers of parameters send 8 bits per element and a scale per 256 elements: "
        "before their use at stage 3, of a step's updated parameters at stages 1 and 2. All ranks "
        "compute with the decoded values. Vectors, such as biases, are not quantized. Master "
        "parameters and shards keep their precision. No effect if all ranks are on one host.",
        zero<&ZeroConfig::quantized_weights>),
    key("zero_quantized_nontrainable_weights", boolean, "false",
        "Same as zero_quantized_weights, for frozen parameters only (stage 3). They are stored in "
        "their own dtype (DeepSpeed stores 8 bits).",
        zero<&ZeroConfig::quantized_nontrainable_weights>),
    key("zero_quantized_gradients", boolean, "false",
        "ZeRO++ (qgZ): gradients are added within each host and then between hosts, which send "
        "each other 8 bits per element and a scale per 256 elements (stages 1 to 3), or 4 bits "
        "(/zerorun/quantized_gradient_bits). Sums are computed in fp32. Vectors, such as biases, "
        "are not quantized. No effect if all ranks are on one host.",
        zero<&ZeroConfig::quantized_gradients>),
    block("/zero_optimization/zeropp_loco_param",
          "LoCo: adds the quantization error of gradients to the next gradients (with "
          "zero_quantized_gradients)."),
    key("err_beta", number.from(0, 1), "null",
        "Weight of earlier errors in the moving average of the error. Not given: 0.8.",
        loco<&LocoConfig::err_beta>),
    key("reset_T", integer.from(1), "null",
        "Number of steps after which the error is reset to zero. Not given: 1024.",
        loco<&LocoConfig::reset_T>),
    key("/zero_optimization/mics_shard_size", integer.from(-1), "-1",
        "MiCS: same as /zerorun/shard_group_size; -1: all ranks.", kMicsShardSize),
    no_effect(
        "/zero_optimization/mics_hierarchical_params_gather", boolean, "false",
        "MiCS: gathers within each host first.",
        "each byte already crosses the link of a host only once, and NCCL uses its own algorithms"),
    no_effect("/zero_optimization/memory_efficient_linear", boolean, "true",
              "Replaces PyTorch's linear function (stage 3).",
              "a module's weights are released after its forward, whatever function used them"),
    no_effect("/zero_optimization/pipeline_loading_checkpoint", boolean, "false",
              "Overlaps reading a checkpoint with copying it (stage 3).",
              "each rank reads only the data that it keeps"),
    always_on("/zero_optimization/override_module_apply", "true",
              "Gathers parameters in Module.apply, within a block of zero.Init (stage 3)."),
    no_effect("/zero_optimization/log_trace_cache_warnings", boolean, "false",
              "Warns when the order of gathers changes (stage 3).",
              "a changed order costs speed, not correctness"),
    pytorch("/zero_optimization/enable_sanity_checks", boolean, "false",
            "true: raises an error if a program changes parameters in GatheredParameters without a "
            "modifier_rank; such changes are lost (stage 3). Ranks compare every collective they "
            "issue in any case."),
    not_yet("/zero_optimization/save_muon_momentum_buffer_in_memory", boolean, "false",
            "Muon with offloading: keeps the momentum in memory."),
    always_on("/zero_optimization/compute_grad_norm", "true",
              "Computes the gradient norm in every step."),
    no_effect("/zero_optimization/parameter_alignment", boolean, "false",
              "Aligns each parameter in its buffer to 16 bytes.",
              "kernels here do not need aligned parameters"),
    block("/zero_optimization/leaf_module", "Modules that are gathered as a whole (stage 3)."),
    key("classes", string | strings, "null",
        "Class names of these modules, with or without the Python module that defines them. Not "
        "given: the mixture-of-experts blocks of Mixtral, Qwen2-MoE and Qwen3-MoE."),
    key("names", string | strings, "null", "Names of these modules, as in named_modules()."),
    key("name_suffixes", string | strings, "null", "Suffixes of the names of these modules."),
});

}  // namespace

std::span<const KeySpec> zero_keys() { return kZeroKeys; }

}  // namespace zerorun::keys
