#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zerorun/engine.h"

namespace zerorun {

// A model as `zerorun plan` sees it.
struct PlanModel {
  std::string description;
  std::vector<ParameterSpec> specs;
  int64_t hidden_size = 0;
  // Bytes that forward keeps for backward, for each token of a micro-batch. Known for the models of
  // the bundled program `train`; else 0.
  double activation_nbytes_per_token = 0.0;
  double recomputed_nbytes_per_token = 0.0;  // with --recompute
};

// A size of the bundled program `train` ("nano" to "gpt2-xl"), the path of a Hugging Face
// config.json as read_hf_shape takes it, or a number of parameters ("350M", "1.3B") up to 1e15.
// `activations`: their dtype. Throws ConfigError naming what it can be, or the file and the key.
PlanModel plan_model(const std::string& name, DType activations = DType::fp32);

}  // namespace zerorun
