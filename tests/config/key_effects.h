#pragma once

#include <cmath>
#include <functional>
#include <vector>

#include "zerorun/config.h"

// The effect of each key of a configuration.
namespace zerorun::testing {

struct Effect {
  const char* pointer;
  const char* value;
  std::function<bool(const Config&)> is_seen;
};

inline std::vector<Effect> batch_and_precision_effects() {
  return {
      {"/train_batch_size", "32", [](const Config& c) { return c.batch.train_batch_size == 32; }},
      {"/train_micro_batch_size_per_gpu", "4",
       [](const Config& c) { return c.batch.micro_batch_size == 4; }},
      {"/gradient_accumulation_steps", "8",
       [](const Config& c) { return c.batch.accumulation_steps == 8; }},
      {"/gradient_clipping", "0.5", [](const Config& c) { return c.gradient_clipping == 0.5; }},
      {"/steps_per_print", "10", [](const Config& c) { return c.steps_per_print == 10; }},
      {"/wall_clock_breakdown", "true", [](const Config& c) { return c.wall_clock_breakdown; }},
      {"/bf16/enabled", "true",
       [](const Config& c) { return c.precision.param_dtype == DType::bf16; }},
      {"/bfloat16/enabled", "true",
       [](const Config& c) { return c.precision.param_dtype == DType::bf16; }},
      {"/data_types/grad_accum_dtype", R"("float")",
       [](const Config& c) { return c.precision.grad_accum_dtype == DType::fp32; }},
      {"/data_types/grad_accum_dtype", R"("torch.FLOAT32")",
       [](const Config& c) { return c.precision.grad_accum_dtype == DType::fp32; }},
      {"/fp16/enabled", "true",
       [](const Config& c) { return c.precision.param_dtype == DType::fp16; }},
      {"/fp16/auto_cast", "true", [](const Config& c) { return c.precision.auto_cast_inputs; }},
      {"/bf16/check_grad_overflow", "false",
       [](const Config& c) { return !c.precision.check_grad_overflow; }},
      {"/communication_data_type", R"("fp16")",
       [](const Config& c) { return c.precision.communication_dtype == DType::fp16; }},
      {"/prescale_gradients", "true",
       [](const Config& c) { return c.precision.prescale_gradients; }},
      {"/gradient_predivide_factor", "2",
       [](const Config& c) { return c.precision.gradient_predivide_factor == 2; }},
      {"/gradient_allreduce_op", R"("SUM")",
       [](const Config& c) { return c.precision.gradient_reduction == GradientReduction::sum; }},
      {"/zerorun/comm_timeout", "1.5", [](const Config& c) { return c.comm_timeout_s == 1.5; }},
      {"/zerorun/share_parameters", "false", [](const Config& c) { return !c.share_parameters; }},
      {"/zerorun/shard_group_size", "4",
       [](const Config& c) { return c.zero.shard_group_size == 4; }},
      {"/zerorun/overlap_param_gather", "true",
       [](const Config& c) { return c.zero.overlap_param_gather; }},
      {"/zerorun/quantized_gradient_bits", "4",
       [](const Config& c) { return c.zero.quantized_gradient_bits == 4; }},
  };
}

inline Effect scaler_effect(const char* pointer, const char* value,
                            bool (*is_seen)(const LossScalerOptions&)) {
  return {pointer, value, [is_seen](const Config& c) { return is_seen(c.precision.loss_scaler); }};
}

inline std::vector<Effect> scaler_effects() {
  using Options = LossScalerOptions;
  return {
      scaler_effect("/fp16/loss_scale", "128",
                    [](const Options& o) { return o.static_scale == 128; }),
      scaler_effect("/fp16/initial_scale_power", "8",
                    [](const Options& o) { return o.initial_scale_power == 8; }),
      scaler_effect("/fp16/loss_scale_window", "50",
                    [](const Options& o) { return o.window == 50; }),
      scaler_effect("/fp16/hysteresis", "3", [](const Options& o) { return o.hysteresis == 3; }),
      scaler_effect("/fp16/consecutive_hysteresis", "true",
                    [](const Options& o) { return o.consecutive_hysteresis; }),
      scaler_effect("/fp16/min_loss_scale", "0.5",
                    [](const Options& o) { return o.min_scale == 0.5; }),
  };
}

inline std::vector<Effect> optimizer_effects() {
  return {
      {"/optimizer/type", R"("adam")", [](const Config& c) { return c.optimizer.type == "Adam"; }},
      {"/optimizer/params/lr", "0.25", [](const Config& c) { return c.optimizer.lr == 0.25F; }},
      {"/optimizer/params/betas", "[0.5, 0.75]",
       [](const Config& c) { return c.optimizer.beta1 == 0.5F && c.optimizer.beta2 == 0.75F; }},
      {"/optimizer/params/eps", "0.125", [](const Config& c) { return c.optimizer.eps == 0.125F; }},
      {"/optimizer/params/weight_decay", "1",
       [](const Config& c) { return c.optimizer.weight_decay == 1.0F; }},
      {"/optimizer/params/bias_correction", "false",
       [](const Config& c) { return !c.optimizer.bias_correction; }},
      {"/optimizer/params/adam_w_mode", "false",
       [](const Config& c) { return !c.optimizer.adam_w_mode; }},
      {"/optimizer/params/momentum", "0.5",
       [](const Config& c) { return c.optimizer.momentum == 0.5; }},
      {"/optimizer/params/dampening", "0.25",
       [](const Config& c) { return c.optimizer.dampening == 0.25; }},
      {"/optimizer/params/nesterov", "true", [](const Config& c) { return c.optimizer.nesterov; }},
      {"/optimizer/params/lr_decay", "0.5",
       [](const Config& c) { return c.optimizer.lr_decay == 0.5; }},
      {"/optimizer/params/eps_inside_sqrt", "true",
       [](const Config& c) { return c.optimizer.eps_inside_sqrt; }},
      {"/optimizer/params/max_coeff", "4",
       [](const Config& c) { return c.optimizer.max_coeff == 4.0F; }},
      {"/optimizer/params/min_coeff", "0.5",
       [](const Config& c) { return c.optimizer.min_coeff == 0.5F; }},
      {"/optimizer/params/muon_lr", "0.5",
       [](const Config& c) { return c.optimizer.muon_lr == 0.5F && c.optimizer.lr == 0.5F; }},
      {"/optimizer/params/adam_lr", "0.5",
       [](const Config& c) { return c.optimizer.adam_lr == 0.5F; }},
      {"/optimizer/params/ns_steps", "7",
       [](const Config& c) { return c.optimizer.ns_steps == 7; }},
      {"/optimizer/params/ns_method", R"("polar_express")",
       [](const Config& c) { return c.optimizer.ns_method == "polar_express"; }},
      {"/optimizer/params/muon_heads", R"({"*.q.weight": 4})",
       [](const Config& c) {
         return c.optimizer.muon_heads ==
                std::vector<std::pair<std::string, int64_t>>{{"*.q.weight", 4}};
       }},
  };
}

Effect schedule_effect(const char* name, const char* value,
                       bool (*is_seen)(const SchedulerConfig&)) {
  static std::set<std::string> pointers;  // keeps their memory
  const std::string& pointer = *pointers.insert(fmt::format("/scheduler/{}", name)).first;
  return {pointer.c_str(), value, [is_seen](const Config& c) { return is_seen(c.scheduler); }};
}

inline std::vector<Effect> warmup_effects() {
  using S = SchedulerConfig;
  return {
      schedule_effect("type", R"("warmuplr")", [](const S& s) { return s.type == "WarmupLR"; }),
      schedule_effect("params/warmup_min_lr", "[1, 2]",
                      [](const S& s) {
                        return s.warmup_min_lr == std::vector{1.0, 2.0};
                      }),
      schedule_effect("params/warmup_max_lr", "0.5",
                      [](const S& s) { return s.warmup_max_lr == std::vector{0.5}; }),
      schedule_effect("params/warmup_num_steps", "1e2",
                      [](const S& s) { return s.warmup_num_steps == 100; }),
      schedule_effect("params/warmup_type", R"("linear")",
                      [](const S& s) { return s.warmup_type == WarmupShape::linear; }),
      schedule_effect("params/total_num_steps", "5000",
                      [](const S& s) { return s.total_num_steps == 5000; }),
      schedule_effect("params/warmup_min_ratio", "0.5",
                      [](const S& s) { return s.warmup_min_ratio == 0.5; }),
      schedule_effect("params/cos_min_ratio", "0.5",
                      [](const S& s) { return s.cos_min_ratio == 0.5; }),
      schedule_effect("params/min_lr_ratio", "0.5",
                      [](const S& s) { return s.min_lr_ratio == 0.5; }),
      schedule_effect("params/decay_num_steps", "7",
                      [](const S& s) { return s.decay_num_steps == 7; }),
      schedule_effect("params/decay_type", R"("1-sqrt")",
                      [](const S& s) { return s.decay_type == DecayShape::one_minus_sqrt; }),
      schedule_effect("params/last_batch_iteration", "9",
                      [](const S& s) { return s.last_batch_iteration == 9; }),
  };
}

inline std::vector<Effect> cycle_effects() {
  using S = SchedulerConfig;
  return {
      schedule_effect("params/lr_range_test_min_lr", "0.5",
                      [](const S& s) { return s.range_test.min_lr == std::vector{0.5}; }),
      schedule_effect("params/lr_range_test_step_size", "7",
                      [](const S& s) { return s.range_test.step_size == 7; }),
      schedule_effect("params/lr_range_test_step_rate", "0.5",
                      [](const S& s) { return s.range_test.step_rate == 0.5; }),
      schedule_effect("params/lr_range_test_staircase", "true",
                      [](const S& s) { return s.range_test.staircase; }),
      schedule_effect("params/cycle_min_lr", "[0.5, 1]",
                      [](const S& s) {
                        return s.one_cycle.min_lr == std::vector{0.5, 1.0};
                      }),
      schedule_effect("params/cycle_max_lr", "0.5",
                      [](const S& s) { return s.one_cycle.max_lr == std::vector{0.5}; }),
      schedule_effect("params/decay_lr_rate", "0.5",
                      [](const S& s) { return s.one_cycle.decay_lr_rate == 0.5; }),
      schedule_effect("params/cycle_first_step_size", "7",
                      [](const S& s) { return s.one_cycle.first_step_size == 7; }),
      schedule_effect("params/cycle_second_step_size", "7",
                      [](const S& s) { return s.one_cycle.second_step_size == 7; }),
      schedule_effect("params/cycle_first_stair_count", "7",
                      [](const S& s) { return s.one_cycle.first_stair_count == 7; }),
      schedule_effect("params/cycle_second_stair_count", "7",
                      [](const S& s) { return s.one_cycle.second_stair_count == 7; }),
      schedule_effect("params/decay_step_size", "7",
                      [](const S& s) { return s.one_cycle.decay_step_size == 7; }),
      schedule_effect("params/cycle_momentum", "false",
                      [](const S& s) { return !s.one_cycle.cycle_momentum; }),
      schedule_effect("params/cycle_min_mom", "0.5",
                      [](const S& s) { return s.one_cycle.min_momentum == std::vector{0.5}; }),
      schedule_effect("params/cycle_max_mom", "0.5",
                      [](const S& s) { return s.one_cycle.max_momentum == std::vector{0.5}; }),
      schedule_effect("params/decay_mom_rate", "0.5",
                      [](const S& s) { return s.one_cycle.decay_momentum_rate == 0.5; }),
  };
}

inline std::vector<Effect> zero_effects() {
  return {
      {"/zero_optimization/stage", "2", [](const Config& c) { return c.zero.stage == 2; }},
      {"/zero_optimization/reduce_bucket_size", "5e7",
       [](const Config& c) { return c.zero.reduce_bucket_size == 50'000'000; }},
      {"/zero_optimization/allgather_bucket_size", "4",
       [](const Config& c) { return c.zero.allgather_bucket_size == 4; }},
      {"/zero_optimization/overlap_comm", "true",
       [](const Config& c) { return c.zero.overlap_comm == true; }},
      {"/zero_optimization/stage3_prefetch_bucket_size", "5",
       [](const Config& c) { return c.zero.prefetch_bucket_size == 5; }},
      {"/zero_optimization/prefetch_bucket_size", "6",
       [](const Config& c) { return c.zero.prefetch_bucket_size == 6; }},
      {"/zero_optimization/param_persistence_threshold", "0",
       [](const Config& c) { return c.zero.param_persistence_threshold == 0; }},
      {"/zero_optimization/stage3_param_persistence_threshold", "7.0",
       [](const Config& c) { return c.zero.param_persistence_threshold == 7; }},
      {"/zero_optimization/stage3_model_persistence_threshold", "8",
       [](const Config& c) { return c.zero.model_persistence_threshold == 8; }},
      {"/zero_optimization/stage3_max_live_parameters", "1e12",
       [](const Config& c) { return c.zero.max_live_parameters == 1'000'000'000'000; }},
      {"/zero_optimization/zero_hpz_partition_size", "8",
       [](const Config& c) { return c.zero.hpz_partition_size == 8; }},
      {"/zero_optimization/zero_quantized_weights", "true",
       [](const Config& c) { return c.zero.quantized_weights; }},
      {"/zero_optimization/zero_quantized_nontrainable_weights", "true",
       [](const Config& c) { return c.zero.quantized_nontrainable_weights; }},
      {"/zero_optimization/zero_quantized_gradients", "true",
       [](const Config& c) { return c.zero.quantized_gradients; }},
      {"/zero_optimization/zeropp_loco_param/err_beta", "0.5",
       [](const Config& c) { return c.zero.loco && c.zero.loco->err_beta == 0.5; }},
      {"/zero_optimization/zeropp_loco_param/reset_T", "16",
       [](const Config& c) { return c.zero.loco && c.zero.loco->reset_T == 16; }},
      {"/zero_optimization/mics_shard_size", "4",
       [](const Config& c) { return c.zero.shard_group_size == 4; }},
      {"/zero_optimization/stage3_max_reuse_distance", "10",
       [](const Config& c) { return c.zero.max_reuse_distance == 10; }},
  };
}

inline std::vector<Effect> offload_effects() {
  return {
      {"/zero_optimization/offload_optimizer/device", R"("cpu")",
       [](const Config& c) { return c.offload.optimizer.device == OffloadDevice::cpu; }},
      {"/zero_optimization/offload_optimizer/nvme_path", R"("/disk")",
       [](const Config& c) { return c.offload.optimizer.nvme_path == "/disk"; }},
      {"/zero_optimization/offload_optimizer/buffer_count", "3",
       [](const Config& c) { return c.offload.optimizer.buffer_count == 3; }},
      {"/zero_optimization/offload_optimizer/ratio", "0.25",
       [](const Config& c) { return c.offload.optimizer.ratio == 0.25; }},
      {"/zero_optimization/offload_param/device", R"("cpu")",
       [](const Config& c) { return c.offload.param.device == OffloadDevice::cpu; }},
      {"/zero_optimization/offload_param/nvme_path", R"("/disk")",
       [](const Config& c) { return c.offload.param.nvme_path == "/disk"; }},
      {"/zero_optimization/offload_param/buffer_count", "3",
       [](const Config& c) { return c.offload.param.buffer_count == 3; }},
      {"/zero_optimization/offload_param/buffer_size", "1000",
       [](const Config& c) { return c.offload.param.buffer_size == 1000; }},
      {"/zero_optimization/offload_param/max_in_cpu", "0",
       [](const Config& c) { return c.offload.param.max_in_cpu == 0; }},
      {"/zero_optimization/sub_group_size", "1000",
       [](const Config& c) { return c.offload.sub_group_size == 1000; }},
      {"/aio/block_size", "8192", [](const Config& c) { return c.offload.aio.block_size == 8192; }},
      {"/aio/queue_depth", "3", [](const Config& c) { return c.offload.aio.queue_depth == 3; }},
      {"/aio/intra_op_parallelism", "3",
       [](const Config& c) { return c.offload.aio.threads == 3; }},
  };
}

inline std::vector<Effect> checkpoint_effects() {
  return {
      {"/checkpoint/async_save", "true", [](const Config& c) { return c.checkpoint.async_save; }},
      {"/checkpoint/async_buffer_size", "4096",
       [](const Config& c) { return c.checkpoint.async_buffer_size == 4096; }},
      {"/checkpoint/keep_last", "3", [](const Config& c) { return c.checkpoint.keep_last == 3; }},
      {"/checkpoint/keep_every", "100",
       [](const Config& c) { return c.checkpoint.keep_every == 100; }},
      {"/checkpoint/writer/decoupled", "true",
       [](const Config& c) { return c.checkpoint.async_save; }},
      {"/datastates_ckpt", R"({"host_cache_size": 2})",
       [](const Config& c) {
         return c.checkpoint.async_save && c.checkpoint.async_buffer_size == int64_t{2} << 30;
       }},
  };
}

inline std::vector<std::vector<Effect>> all_effects() {
  return {batch_and_precision_effects(),
          scaler_effects(),
          optimizer_effects(),
          warmup_effects(),
          cycle_effects(),
          zero_effects(),
          offload_effects(),
          checkpoint_effects()};
}

}  // namespace zerorun::testing
