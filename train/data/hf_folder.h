#pragma once

#include <memory>
#include <string>
#include <vector>

#include "train/model/gpt_config.h"
#include "zerorun/checkpoint.h"
#include "zerorun/engine.h"

// A folder in the layout of Hugging Face's transformers: config.json and model.safetensors.
namespace zerorun::train {

// Throws ConfigError when there is no config.json or it describes another kind of model.
GptConfig read_hf_config(const std::string& folder);
// Makes the folder if need be.
void write_hf_config(const std::string& folder, const GptConfig& config);

// Collective: the full model, each rank writing what it holds.
void write_hf_weights(const std::string& folder, Engine& engine, Communicator& comm);

// The weights of a GPT-2 in such a folder, whose names may lack the prefix "transformer.".
class HfWeights {
 public:
  // Throws CheckpointError naming the first tensor that is missing or has another shape or dtype.
  HfWeights(const std::string& folder, const GptConfig& config);
  // Elements from `begin` on of the parameter with this position among parameter_specs(config).
  void fill(ParameterId id, int64_t begin, std::span<float> out) const;

 private:
  SafetensorsReader reader_;
  std::vector<TensorView> tensors_;  // by parameter
};

}  // namespace zerorun::train
