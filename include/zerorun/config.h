#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "zerorun/dtype.h"
#include "zerorun/export.h"
#include "zerorun/loss_scaler.h"

namespace zerorun {

// The typed form of a ds_config.json. Defaults are DeepSpeed 0.19's unless a comment says
// otherwise; docs/config.md (generated from the key table) documents every key.

struct BatchConfig {
  // 0 = not given. After resolve_batch: train_batch_size == micro_batch_size * accumulation_steps *
  // world_size.
  int64_t train_batch_size = 0;
  int64_t micro_batch_size = 0;    // train_micro_batch_size_per_gpu
  int64_t accumulation_steps = 0;  // gradient_accumulation_steps
};

// How the gradients of the ranks are combined (gradient_allreduce_op).
enum class GradientReduction : uint8_t { mean, sum };

struct PrecisionConfig {
  DType param_dtype = DType::fp32;  // bf16.enabled -> bf16, fp16.enabled -> fp16
  // dtype of the reduced gradient. Unset: param_dtype when accumulation_steps is 1, else fp32.
  std::optional<DType> grad_accum_dtype;
  // No fp32 master copy: the optimizer updates the 16-bit parameters themselves, rounding
  // stochastically. bf16.bf16_master_weights_and_grads, fp16.fp16_master_weights_and_grads.
  bool master_is_param = false;
  // dtype of the optimizer's states; 16-bit ones are rounded stochastically.
  // bf16.bf16_optimizer_states -> bf16.
  DType state_dtype = DType::fp32;
  // dtype of gradients on the wire (communication_data_type). Unset: param_dtype.
  std::optional<DType> communication_dtype;
  GradientReduction gradient_reduction = GradientReduction::mean;
  // A mean is taken by dividing before the sum (prescale_gradients), or by this factor before the
  // sum and by the rest after it.
  bool prescale_gradients = false;
  double gradient_predivide_factor = 1.0;
  bool check_grad_overflow = true;  // bf16: skip a step whose gradient is not finite
  bool auto_cast_inputs = false;    // fp16.auto_cast: for programs that feed float inputs
  // The loss is scaled though parameters are not fp16: they compute in it (torch_autocast).
  bool scales_loss = false;
  LossScalerOptions loss_scaler;  // the fp16 block; for fp16 parameters and scales_loss
};

// Hyperparameters of all optimizers; each type reads its own. Defaults are AdamW's: parse_config
// fills in those of the type. lr and weight_decay are what parameter groups start from.
// size: one key of /optimizer/params each
struct OptimizerConfig {
  // Adam, AdamW, Adam8bit, AdamW8bit, SGD, Adagrad, Lion, Lamb or Muon, in any case.
  std::string type = "AdamW";
  float lr = 1e-3F;
  double beta1 = 0.9;  // Muon: of the parameters that AdamW updates, like beta2 and eps
  double beta2 = 0.999;
  float eps = 1e-8F;
  float weight_decay = 0.0F;
  bool bias_correction = true;   // Adam, Lamb
  bool adam_w_mode = true;       // also for type "Adam", as in DeepSpeed
  double momentum = 0.0;         // SGD, Muon
  double dampening = 0.0;        // SGD
  bool nesterov = false;         // SGD; Muon always has it
  double lr_decay = 0.0;         // Adagrad
  bool eps_inside_sqrt = false;  // Lamb
  float min_coeff = 0.01F;       // Lamb: limits of the trust ratio
  float max_coeff = 10.0F;
  int ns_steps = 5;  // Muon: Newton-Schulz iterations
  // Muon: what parameter groups of matrices and of the rest start from, in the place of lr.
  float muon_lr = 0.02F;
  float adam_lr = 3e-4F;
};

enum class WarmupShape : uint8_t { log, linear };
enum class DecayShape : uint8_t { linear, cosine, one_minus_sqrt };

struct LrRangeTestConfig {
  std::vector<double> min_lr = {1e-3};
  int64_t step_size = 2000;
  double step_rate = 1.0;
  bool staircase = false;
};

struct OneCycleConfig {
  std::vector<double> min_lr, max_lr;
  int64_t first_step_size = 2000;
  std::optional<int64_t> second_step_size;  // unset: first_step_size
  int64_t first_stair_count = 0;            // 0: continuous
  std::optional<int64_t> second_stair_count;
  int64_t decay_step_size = 0;  // 0: no decay after the cycle
  double decay_lr_rate = 0.0;
  bool cycle_momentum = true;
  std::vector<double> min_momentum = {0.8}, max_momentum = {0.9};
  double decay_momentum_rate = 0.0;
};

// The scheduler block; each type reads its own parameters, and parse_config fills in its defaults.
// lr_schedule.h computes from it. Vectors hold one value for all parameter groups or one per group.
struct SchedulerConfig {
  // WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest, cosine, linear, constant or
  // WSD. Empty: the learning rates stay what the groups start from.
  std::string type;
  int64_t last_batch_iteration = -1;  // as in DeepSpeed: -1 starts from the beginning
  int64_t total_num_steps = 0;        // 0: not given, or "auto" and not resolved
  int64_t warmup_num_steps = 1000;
  WarmupShape warmup_type = WarmupShape::log;
  std::vector<double> warmup_min_lr = {0.0};
  std::vector<double> warmup_max_lr;  // empty: the group's lr
  double warmup_min_ratio = 0.0;      // WarmupCosineLR
  double cos_min_ratio = 1e-4;        // WarmupCosineLR
  double min_lr_ratio = 0.0;          // cosine, linear, WSD: last lr, as a part of the group's
  int64_t decay_num_steps = 0;        // WSD
  DecayShape decay_type = DecayShape::cosine;  // WSD
  LrRangeTestConfig range_test;
  OneCycleConfig one_cycle;
};

// A size of ZeroConfig's groups: the ranks of a host.
inline constexpr int64_t kRanksOfHost = -1;

// zero_optimization.zeropp_loco_param: what gradients lose in few bits is added to the next ones.
struct LocoConfig {
  double err_beta = 0.8;   // part of the earlier loss in the moving average that is kept
  int64_t reset_T = 1024;  // steps after which it is forgotten
};

struct ZeroConfig {
  int stage = 0;
  // zerorun.shard_group_size: ranks that share one copy of what the stage shards; 0: all.
  int64_t shard_group_size = 0;
  int64_t reduce_bucket_size = 500'000'000;     // elements
  int64_t allgather_bucket_size = 500'000'000;  // elements
  std::optional<bool> overlap_comm;  // nullopt: on GPUs; a file that leaves it out: at stage 3 too
  int64_t prefetch_bucket_size = 50'000'000;      // elements gathered ahead (stage 3)
  int64_t param_persistence_threshold = 100'000;  // smaller parameters stay gathered (stage 3)
  int64_t model_persistence_threshold = std::numeric_limits<int64_t>::max();
  int64_t max_live_parameters = 1'000'000'000;  // elements
  int64_t max_reuse_distance = 1'000'000'000;   // elements
  // ZeRO++, between hosts. Ranks that share a second copy of parameters (stage 3); 1: there is
  // none.
  int64_t hpz_partition_size = 1;
  bool quantized_weights = false;               // gathers of stage 3 carry 8 bits
  bool quantized_nontrainable_weights = false;  // those of frozen parameters do
  bool quantized_gradients = false;             // reductions carry 4 bits
  std::optional<LocoConfig> loco;               // of quantized gradients
};

// The storage of something that is not in use: the rank's device, host memory, or a file.
enum class OffloadDevice : uint8_t { none, cpu, nvme };

// zero_optimization.offload_optimizer: masters, optimizer states and reduced gradients.
struct OffloadOptimizerConfig {
  OffloadDevice device = OffloadDevice::none;
  std::optional<std::string> nvme_path;  // a folder on a local disk
  int64_t buffer_count = 4;              // staging buffers between file and memory
  double ratio = 1.0;  // part of the states that is offloaded; the rest stays on the device
};

// zero_optimization.offload_param: parameters of stage 3.
struct OffloadParamConfig {
  OffloadDevice device = OffloadDevice::none;
  std::optional<std::string> nvme_path;  // a folder on a local disk
  int64_t buffer_count = 5;              // staging buffers between file and memory
  int64_t buffer_size = 100'000'000;     // elements of one, at most
  int64_t max_in_cpu = 1'000'000'000;    // nvme: elements of a rank's shards that stay in memory
};

// The aio block: how files are read and written.
struct AioConfig {
  int64_t block_size = 1 << 20;  // bytes of a request
  int64_t queue_depth = 8;       // requests in flight
  int64_t threads = 1;           // intra_op_parallelism: when the kernel refuses io_uring
};

struct OffloadConfig {
  OffloadOptimizerConfig optimizer;
  OffloadParamConfig param;
  AioConfig aio;
  // sub_group_size: elements of a shard that are staged and updated at once, at most.
  int64_t sub_group_size = 1'000'000'000;
};

// The checkpoint block: how a run saves.
struct CheckpointConfig {
  bool async_save = false;        // training goes on while a thread writes
  int64_t async_buffer_size = 0;  // bytes of a snapshot; 0: what fits the model
  int64_t keep_last = 0;          // checkpoints of a run that stay; 0: all
  int64_t keep_every = 0;         // and those whose step is a multiple; 0: none of them
};

struct Config {
  BatchConfig batch;
  PrecisionConfig precision;
  OptimizerConfig optimizer;
  SchedulerConfig scheduler;
  ZeroConfig zero;
  OffloadConfig offload;
  CheckpointConfig checkpoint;
  double gradient_clipping = 1.0;  // max global L2 norm; 0 = off
  std::optional<int64_t> steps_per_print;
  bool wall_clock_breakdown = false;

  // zerorun.* keys: this project's own, absent in DeepSpeed.
  double comm_timeout_s = 600.0;     // zerorun.comm_timeout
  bool share_parameters = true;      // zerorun.share_parameters: stage 3, once per host
  std::string train_options = "{}";  // zerorun.train, as JSON text checked against the key table
  std::string source;                // the file's path, or "<dict>"
};

// A value of a resolved configuration, and its source.
struct ConfigValue {
  std::string pointer;    // JSON pointer, "/zero_optimization/stage"
  std::string value;      // JSON text
  bool is_given = false;  // written in the configuration, as "auto" or with a value
  bool is_default = true;
  bool is_auto = false;  // the file says "auto"
  std::string fallback;  // the default, JSON text; "null": not given
  int line = 0;          // of the value in the file, from 1; 0: it is not there
  int column = 0;
};

struct ParsedConfig {
  Config config;
  std::vector<ConfigValue> values;    // every key that is set or has an effect
  std::vector<std::string> warnings;  // deprecated names, keys without effect
};

// `json` is the text of a ds_config.json, `source` its name in messages. Batch sizes stay as given
// until resolve_batch. Throws ConfigError listing every problem with its JSON pointer.
ZR_API ParsedConfig parse_config(std::string_view json, std::string source = "<string>");
// Reads a file, or decodes the URL-safe base64 text of one when there is no such file, as DeepSpeed
// does. Throws ConfigError when it can be neither.
ZR_API ParsedConfig load_config(const std::string& path);
// The content of what load_config reads, without comments, unchecked but for duplicate keys.
ZR_API std::string plain_config_json(const std::string& path);

// Facts that a program knows and a file may leave to "auto"; 0 or unset: not known.
struct RunFacts {
  int world_size = 0;
  int64_t hidden_size = 0;  // width of the model
  int64_t total_steps = 0;  // optimizer steps of the run
  std::optional<int64_t> warmup_steps;
};
// Sets what the file has left to "auto", as Hugging Face's Trainer does: batch sizes from the world
// size, bucket sizes from the width of the model, lengths of the schedule from those of the run.
// Throws ConfigError naming every "auto" that neither `facts` nor a default resolves.
ZR_API void resolve_auto(ParsedConfig& parsed, const RunFacts& facts);
// Applies DeepSpeed's inference rules. `given` has 0 for "not given"
// (accumulation_steps too). Throws ConfigError printing each term and the nearest valid settings.
ZR_API BatchConfig resolve_batch(const BatchConfig& given, int world_size);

}  // namespace zerorun
