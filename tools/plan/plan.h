#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zero/memory_plan.h"
#include "zerorun/config.h"
#include "zerorun/engine.h"

namespace zerorun {

// The options of `zerorun plan`. Sizes are text ("80GB", "24GiB"), empty if not given. The
// micro-batch size is that of the options, else of the configuration, else the default of the
// bundled program.
// size: one option each
struct PlanOptions {
  std::string config;  // argument of load_config; empty: stage 2, bf16, AdamW
  std::string model;
  int world_size = 1;
  int ranks_per_host = 0;  // 0 or more than there are: all
  bool cpu = false;        // CPU ranks: "device" is host memory
  std::string device_memory, host_memory, disk;
  std::string nvme_path;  // folder for settings with NVMe; empty: that of the config
  int64_t micro_batch = 0;
  int64_t seq_len = 0;
  bool recompute = false;
  bool fast_attention = false;
  std::string fit;  // file for the fastest configuration that fits
  bool json = false;
  // A cluster to simulate, in the form that parse_cluster and parse_rate accept; empty: none.
  std::string simulate, link, nvlink, link_cpu;
  double latency_us = 5.0;  // latency of a message between hosts, in microseconds
  double tflops = 0.0;      // 10^12 operations per second of a GPU
};

// Returns the bytes per rank by category for the configuration, and a table of stages and offload
// settings. With `simulate` also the cost of a step on that cluster and the cheapest groups
// (tools/plan/simulation.h). With `json` only the table, as JSON. Writes the file `fit`, with the
// micro-batch size for which it fits. Throws ConfigError if nothing in the table fits, naming the
// closest setting.
std::string plan_report(const PlanOptions& options);

// The properties of a model that `zerorun plan` needs.
struct PlanModel {
  std::string description;
  std::vector<ParameterSpec> specs;
  int64_t hidden_size = 0;
  // Bytes of activations per token of a micro-batch. Known for the models of the bundled program
  // `train`; else 0.
  double activation_nbytes_per_token = 0.0;
  double logits_row_nbytes = 0.0;
  double recomputed_nbytes_per_token = 0.0;  // with --recompute
  int64_t heads = 0;                         // of those models
};

// Returns the model of that name: a model of the bundled program `train` ("nano" to "gpt2-xl"), the
// path of a Hugging Face config.json (see read_hf_shape), or a number of parameters ("350M",
// "1.3B") up to 1e15. `activations` is the dtype of activations. Throws ConfigError that lists the
// possible values, or names the file and the key.
PlanModel plan_model(const std::string& name, DType activations = DType::fp32);

// The work of a micro-step: from the options, else from the file, else the default of the bundled
// program.
struct Workload {
  int64_t micro_batch = 0;  // 0: that of the file, which may be "auto"
  int64_t seq_len = 0;      // 0: activations are not counted
  bool recompute = false;
  bool fast_attention = false;
};

// Reads the keys of "zerorun.train" as `train` does.
Workload workload_of(const PlanOptions& options, const Config& config);

// Bytes of activations of a micro-batch, and on GPUs of attention's backward. A double, since no
// size is too large to ask for.
double activation_nbytes(const PlanModel& model, const Workload& work, const Config& config,
                         bool cpu);

// Returns the bytes of host memory that a rank needs for asynchronous saves
// (checkpoint.async_save); 0 without them. Equals the allocation of AsyncSaver except for padding.
int64_t plan_snapshot(const Config& config, std::span<const ParameterSpec> specs,
                      const HostLayout& layout);

// A stage and offload settings.
struct Setting {
  int stage = 0;
  OffloadDevice optimizer = OffloadDevice::none;
  double ratio = 1.0;
  OffloadDevice param = OffloadDevice::none;
};

std::string_view name_of(OffloadDevice device);
std::string describe(const Setting& setting);
// Returns the rows of the table, from which --fit chooses. Order: nothing offloaded first, then as
// little as possible; memory before disk; lower stages, which gather less, before higher ones.
std::vector<Setting> all_settings();
// Returns the settings from the fastest to the slowest. (Stage 1 communicates as much as stage 0
// and never needs more memory.)
std::vector<Setting> by_speed();

// Changes a configuration, a JSON object, to a setting. Removes keys that its stage does not allow;
// keeps all others.
void set_setting(nlohmann::ordered_json& json, const Setting& setting,
                 const std::string& nvme_path);

}  // namespace zerorun
