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

struct PrecisionConfig {
  DType param_dtype = DType::fp32;  // bf16.enabled -> bf16
  // dtype of the reduced gradient. Unset: param_dtype when accumulation_steps is 1, else fp32.
  std::optional<DType> grad_accum_dtype;
  // No fp32 master copy: the optimizer updates the 16-bit parameters themselves, rounding
  // stochastically. bf16.bf16_master_weights_and_grads, fp16.fp16_master_weights_and_grads.
  bool master_is_param = false;
  // dtype of the optimizer's states; 16-bit ones are rounded stochastically.
  // bf16.bf16_optimizer_states -> bf16.
  DType state_dtype = DType::fp32;
};

// Hyperparameters of all optimizers; each type reads its own. Defaults are AdamW's: parse_config
// fills in those of the type. lr and weight_decay are what parameter groups start from.
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

struct ZeroConfig {
  int stage = 0;
  int64_t reduce_bucket_size = 500'000'000;       // elements
  int64_t allgather_bucket_size = 500'000'000;    // elements
  bool overlap_comm = false;                      // unset in the file: stage == 3
  int64_t prefetch_bucket_size = 50'000'000;      // elements gathered ahead (stage 3)
  int64_t param_persistence_threshold = 100'000;  // smaller parameters stay gathered (stage 3)
  int64_t model_persistence_threshold = std::numeric_limits<int64_t>::max();
  int64_t max_live_parameters = 1'000'000'000;  // elements
  int64_t max_reuse_distance = 1'000'000'000;   // elements
};

struct Config {
  BatchConfig batch;
  PrecisionConfig precision;
  OptimizerConfig optimizer;
  ZeroConfig zero;
  double gradient_clipping = 1.0;  // max global L2 norm; 0 = off
  std::optional<int64_t> steps_per_print;
  bool wall_clock_breakdown = false;

  // zerorun.* keys: this project's own, absent in DeepSpeed.
  double comm_timeout_s = 120.0;     // zerorun.comm_timeout
  bool share_parameters = true;      // zerorun.share_parameters: stage 3, once per host
  std::string train_options = "{}";  // zerorun.train, as JSON text checked against the key table
  std::string source;                // the file's path, or "<dict>"
};

// Where a value of a resolved configuration comes from.
struct ConfigValue {
  std::string pointer;  // JSON pointer, "/zero_optimization/stage"
  std::string value;    // JSON text
  bool is_default = true;
};

struct ParsedConfig {
  Config config;
  std::vector<ConfigValue> values;    // every key that is set or has an effect
  std::vector<std::string> warnings;  // deprecated names, keys without effect
};

// `json` is the text of a ds_config.json, `source` its name in messages. Batch sizes stay as given
// until resolve_batch. Throws ConfigError listing every problem with its JSON pointer.
ZR_API ParsedConfig parse_config(std::string_view json, std::string source = "<string>");
// Reads a file; throws ConfigError (IoError text included) when it cannot be read.
ZR_API ParsedConfig load_config(const std::string& path);
// Applies DeepSpeed's inference rules. `given` has 0 for "not given"
// (accumulation_steps too). Throws ConfigError printing each term and the nearest valid settings.
ZR_API BatchConfig resolve_batch(const BatchConfig& given, int world_size);

}  // namespace zerorun
