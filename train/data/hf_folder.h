#pragma once

#include <string>
#include <vector>

#include "train/model/gpt_config.h"
#include "zerorun/checkpoint.h"
#include "zerorun/engine.h"

// Reads and writes folders in the format of Hugging Face's transformers: config.json and
// model.safetensors.
namespace zerorun::train {

// Throws ConfigError if there is no config.json or it describes another kind of model.
GptConfig read_hf_config(const std::string& folder);
// Creates the folder if necessary.
void write_hf_config(const std::string& folder, const GptConfig& config);

// Writes the full model; each rank writes the intervals that it holds. Collective.
void write_hf_weights(const std::string& folder, Engine& engine, Communicator& comm);

// The weights of a GPT-2 in such a folder. Their names may lack the prefix "transformer.".
class HfWeights {
 public:
  // Throws CheckpointError that names the first tensor that is missing or has another shape or
  // dtype.
  HfWeights(const std::string& folder, const GptConfig& config);
  // Copies elements from `begin` on of the parameter with index `id` in parameter_specs(config). Of
  // the files no more than that is in memory.
  void fill(ParameterId id, int64_t begin, std::span<float> out) const;

 private:
  SafetensorsReader reader_;
  std::vector<TensorView> tensors_;  // indexed by parameter
};

}  // namespace zerorun::train
