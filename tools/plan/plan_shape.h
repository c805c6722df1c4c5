#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/model/gpt_config.h"

namespace zerorun {

// The parameters of one kind of block.
struct BlockKind {
  bool gated = false;  // gated feed-forward part with three matrices, and norms without biases
  bool query_bias = true;
  bool output_bias = true;
  bool inner_bias = true;
  int64_t head_norm = 0;  // width of the norms of queries and of keys; 0: none
};

// A transformer: blocks of attention and feed-forward between two embeddings.
struct PlanShape {
  int64_t vocabulary = 50257;
  int64_t positions = 0;  // number of learned positions; 0: none
  int64_t width = 0;
  int64_t layers = 0;
  int64_t query_width = 0;  // number of heads * width of a head
  int64_t key_value_width = 0;
  int64_t inner = 0;
  BlockKind block = {};
  bool tied = true;  // the output head shares the embedding
  // configuration for the bundled program, if it can train the model
  std::optional<train::GptConfig> bundled = {};
};

// Returns the shape of a GPT-2 of the bundled program.
PlanShape shape_of(const train::GptConfig& gpt);

// Reads the Hugging Face config.json of a GPT-2 or of a Llama-like model. Throws ConfigError that
// names the file and the key if a key is missing or invalid, or if the model has other kinds of
// parameters.
PlanShape read_hf_shape(const std::string& path);

}  // namespace zerorun
