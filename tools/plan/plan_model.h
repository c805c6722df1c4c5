#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zerorun/engine.h"

namespace zerorun {

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

}  // namespace zerorun
