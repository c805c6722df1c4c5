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
  // 0 means "not given". After resolve_batch: train_batch_size == micro_batch_size *
  // accumulation_steps * world_size.
  int64_t train_batch_size = 0;
  int64_t micro_batch_size = 0;    // train_micro_batch_size_per_gpu
  int64_t accumulation_steps = 0;  // gradient_accumulation_steps
};

// How the gradients of the ranks are combined (gradient_allreduce_op).
enum class GradientReduction : uint8_t { mean, sum };

struct PrecisionConfig {
  DType param_dtype = DType::fp32;  // bf16.enabled -> bf16, fp16.enabled -> fp16
  // dtype of the reduced gradient. Unset: param_dtype if accumulation_steps is 1, else fp32.
  std::optional<DType> grad_accum_dtype;
  // No fp32 master parameters: the optimizer updates the 16-bit parameters with stochastic rounding
  // (bf16.bf16_master_weights_and_grads, fp16.fp16_master_weights_and_grads).
  bool master_is_param = false;
  // dtype of the optimizer states; bf16 if bf16.bf16_optimizer_states is set, with stochastic
  // rounding.
  DType state_dtype = DType::fp32;
  // dtype in which gradients are communicated (communication_data_type). Unset: param_dtype.
  std::optional<DType> communication_dtype;
  GradientReduction gradient_reduction = GradientReduction::mean;
  // How a mean is computed: with prescale_gradients by dividing by the number of ranks before the
  // sum, else by dividing by gradient_predivide_factor before and by ranks / factor after the sum.
  bool prescale_gradients = false;
  double gradient_predivide_factor = 1.0;
  bool check_grad_overflow = true;  // bf16: skip a step if its gradient is not finite
  bool auto_cast_inputs = false;  // fp16.auto_cast: cast floating-point inputs of the model to fp16
  // The loss is scaled although parameters are not fp16: the model computes in fp16
  // (torch_autocast).
  bool scales_loss = false;
  LossScalerOptions loss_scaler;  // the section fp16; used with fp16 parameters and scales_loss
};

// Hyperparameters of all optimizers; each type reads those that it needs. The initial values are
// AdamW's defaults; parse_config sets the defaults of the type. lr and weight_decay are the initial
// values of parameter groups.
// size: one key of /optimizer/params each
struct OptimizerConfig {
  // Adam, AdamW, Adam8bit, AdamW8bit, SGD, Adagrad, Lion, Lamb or Muon; case does not matter.
  std::string type = "AdamW";
  float lr = 1e-3F;
  double beta1 = 0.9;  // Muon: beta1, beta2 and eps apply to the parameters that AdamW updates
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
  // Muon: "gram" and "standard" have Jordan's coefficients, "polar_express" those of its name.
  std::string ns_method = "gram";
  // Muon: patterns of names (* and ?), and into how many blocks the rows of matching matrices are
  // divided, each of which is a matrix for Muon. The first pattern that matches counts.
  std::vector<std::pair<std::string, int64_t>> muon_heads;
  // Muon: initial lr of the parameter groups of matrices (muon_lr) and of other parameters
  // (adam_lr), instead of lr.
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

// The section scheduler, from which make_lr_schedule (lr_schedule.h) makes a schedule. Each type
// reads its own parameters; parse_config sets the defaults of the type. A vector has one value for
// all parameter groups, or one per group.
struct SchedulerConfig {
  // WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest, cosine, linear, constant or
  // WSD. Empty: the learning rates of the groups do not change.
  std::string type;
  int64_t last_batch_iteration = -1;  // as in DeepSpeed: -1 starts from the beginning
  int64_t total_num_steps = 0;        // 0: not given, or "auto" and not yet resolved
  int64_t warmup_num_steps = 1000;
  WarmupShape warmup_type = WarmupShape::log;
  std::vector<double> warmup_min_lr = {0.0};
  std::vector<double> warmup_max_lr;  // empty: the group's lr
  double warmup_min_ratio = 0.0;      // WarmupCosineLR
  double cos_min_ratio = 1e-4;        // WarmupCosineLR
  double min_lr_ratio = 0.0;    // cosine, linear, WSD: final lr as a fraction of the group's lr
  int64_t decay_num_steps = 0;  // WSD
  DecayShape decay_type = DecayShape::cosine;  // WSD
  LrRangeTestConfig range_test;
  OneCycleConfig one_cycle;
};

// Value of shard_group_size and hpz_partition_size that means the number of ranks of a host
// ("auto").
inline constexpr int64_t kRanksOfHost = -1;

// The section zero_optimization.zeropp_loco_param: adds the quantization error of gradients to the
// next gradients.
struct LocoConfig {
  double err_beta = 0.8;   // weight of earlier errors in the moving average of the error
  int64_t reset_T = 1024;  // number of steps after which the error is reset to zero
};

struct ZeroConfig {  // size: one member for each key
  int stage = 0;
  // zerorun.shard_group_size: number of ranks that share one copy of what the stage shards; 0: all
  // ranks.
  int64_t shard_group_size = 0;
  int64_t reduce_bucket_size = 500'000'000;     // elements
  int64_t allgather_bucket_size = 500'000'000;  // elements
  std::optional<bool> overlap_comm;  // unset: true on GPUs; parse_config also sets it at stage 3
  // zerorun.overlap_param_gather: PyTorch models at stages 1 and 2 wait for a bucket's updated
  // parameters when one of them is first used
  bool overlap_param_gather = false;
  int64_t prefetch_bucket_size = 50'000'000;      // elements to prefetch (stage 3)
  int64_t param_persistence_threshold = 100'000;  // smaller parameters stay gathered (stage 3)
  int64_t model_persistence_threshold = std::numeric_limits<int64_t>::max();
  int64_t max_live_parameters = 1'000'000'000;  // elements
  int64_t max_reuse_distance = 1'000'000'000;   // elements
  // ZeRO++, which saves traffic between hosts. Number of ranks of an hpZ (secondary) partition of
  // the parameters (stage 3); 1: there is none.
  int64_t hpz_partition_size = 1;
  bool quantized_weights = false;               // gathers send 8 bits per element
  bool quantized_nontrainable_weights = false;  // gathers of frozen parameters do
  bool quantized_gradients = false;     // reductions send fewer bits per element between hosts:
  int64_t quantized_gradient_bits = 8;  // zerorun.quantized_gradient_bits: 8 or 4
  std::optional<LocoConfig> loco;       // for quantized gradients
};

// Where data is stored while it is not in use: on the rank's device, in host memory, or in a file.
enum class OffloadDevice : uint8_t { none, cpu, nvme };

// The section zero_optimization.offload_optimizer: storage of master parameters, optimizer states
// and reduced gradients.
struct OffloadOptimizerConfig {
  OffloadDevice device = OffloadDevice::none;
  std::optional<std::string> nvme_path;  // a folder on a local disk
  int64_t buffer_count = 4;              // staging buffers between file and memory
  double ratio = 1.0;  // fraction of the states that is offloaded; the rest stays on the device
};

// The section zero_optimization.offload_param: storage of parameters (stage 3).
struct OffloadParamConfig {
  OffloadDevice device = OffloadDevice::none;
  std::optional<std::string> nvme_path;  // a folder on a local disk
  int64_t buffer_count = 5;              // staging buffers between file and memory
  int64_t buffer_size = 100'000'000;     // maximum number of elements of a staging buffer
  // nvme: number of elements of a rank's shards that stay in memory
  int64_t max_in_cpu = 1'000'000'000;
};

// The section aio: how files are read and written.
struct AioConfig {
  int64_t block_size = 1 << 20;  // bytes per request
  int64_t queue_depth = 8;       // requests in flight
  int64_t threads = 1;  // intra_op_parallelism: threads if the kernel does not allow io_uring
};

struct OffloadConfig {
  OffloadOptimizerConfig optimizer;
  OffloadParamConfig param;
  AioConfig aio;
  // sub_group_size: maximum number of elements of a shard that are staged and updated at once.
  int64_t sub_group_size = 1'000'000'000;
};

// The section checkpoint: how a run saves checkpoints.
struct CheckpointConfig {
  bool async_save = false;  // training continues while a thread writes
  // bytes of memory for the copy of the states; 0: chosen by AsyncSaver
  int64_t async_buffer_size = 0;
  int64_t keep_last = 0;   // number of checkpoints of a run to keep; 0: all
  int64_t keep_every = 0;  // also keep checkpoints whose step is a multiple of this; 0: none
};

struct Config {
  BatchConfig batch;
  PrecisionConfig precision;
  OptimizerConfig optimizer;
  SchedulerConfig scheduler;
  ZeroConfig zero;
  OffloadConfig offload;
  CheckpointConfig checkpoint;
  double gradient_clipping = 1.0;  // maximum global L2 norm of the gradient; 0: no clipping
  std::optional<int64_t> steps_per_print;
  bool wall_clock_breakdown = false;

  // The section zerorun, which DeepSpeed does not have.
  double comm_timeout_s = 600.0;  // zerorun.comm_timeout
  // zerorun.share_parameters: stage 3 keeps gathered parameters once per host
  bool share_parameters = true;
  std::string train_options = "{}";  // zerorun.train, as JSON text checked against the key table
  std::string source;                // the file's path, or "<dict>"
};

// The value of a key of a resolved configuration, and where it comes from.
struct ConfigValue {
  std::string pointer;    // JSON pointer, "/zero_optimization/stage"
  std::string value;      // JSON text
  bool is_given = false;  // the configuration has the key, with a value or "auto"
  bool is_default = true;
  bool is_auto = false;  // the configuration says "auto"
  std::string fallback;  // default value as JSON text; "null": no default
  int line = 0;          // line of the value in the file, from 1; 0: the file does not have it
  int column = 0;
};

struct ParsedConfig {
  Config config;
  std::vector<ConfigValue> values;    // all keys that are set or have an effect
  std::vector<std::string> warnings;  // deprecated names, keys without effect
};

// Parses and checks `json`, the text of a ds_config.json. `source` is its name in messages. Batch
// sizes remain as given until resolve_batch is called. Throws ConfigError that lists all problems
// with their JSON pointers.
ZR_API ParsedConfig parse_config(std::string_view json, std::string source = "<string>");
// Parses the file `path`. If there is no such file, `path` may be the URL-safe base64 text of a
// configuration, as in DeepSpeed. Throws ConfigError if it is neither, or as parse_config does.
ZR_API ParsedConfig load_config(const std::string& path);
// Returns the text that load_config would parse, without comments. Only duplicate keys are checked.
ZR_API std::string plain_config_json(const std::string& path);

// Facts that a program knows, from which values that are "auto" are computed. 0 or unset: not
// known.
struct RunFacts {
  int world_size = 0;
  int64_t hidden_size = 0;  // width of the model
  int64_t total_steps = 0;  // optimizer steps of the run
  std::optional<int64_t> warmup_steps;
};
// Computes all values that are "auto", as Hugging Face's Trainer does: batch sizes from the world
// size, bucket sizes from the width of the model, numbers of steps of the schedule from those of
// the run. Throws ConfigError naming every "auto" that neither `facts` nor a default resolves.
ZR_API void resolve_auto(ParsedConfig& parsed, const RunFacts& facts);
// Computes missing batch sizes by DeepSpeed's rules. In `given` 0 means "not given", also for
// accumulation_steps. Throws ConfigError that prints each term and the nearest valid settings if
// they contradict each other.
ZR_API BatchConfig resolve_batch(const BatchConfig& given, int world_size);

}  // namespace zerorun
