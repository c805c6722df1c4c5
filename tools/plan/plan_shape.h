#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/model/gpt_config.h"

namespace zerorun {

// The parameters that one kind of block has.
struct BlockKind {
  bool gated = false;  // three matrices in the feed-forward part, and norms without biases
  bool query_bias = true;
  bool output_bias = true;
  bool inner_bias = true;
  int64_t head_norm = 0;  // width of a norm of queries and of one of keys; 0: none
};

// A transformer: blocks of attention and feed-forward between two embeddings.
struct PlanShape {
  int64_t vocabulary = 50257;
  int64_t positions = 0;  // 0: none are learned
  int64_t width = 0;
  int64_t layers = 0;
  int64_t query_width = 0;  // heads * width of a head
  int64_t key_value_width = 0;
  int64_t inner = 0;
  BlockKind block = {};
  bool tied = true;                              // the head is the embedding
  std::optional<train::GptConfig> bundled = {};  // as the bundled program trains it, if it does
};

// The shape of a GPT-2 of the bundled program.
PlanShape shape_of(const train::GptConfig& gpt);

// Reads the Hugging Face config.json of a GPT-2 or of a model of the Llama kind. Throws ConfigError
// naming the file and the key that is missing, has another type or no sense, and for models with
// other parameters than those.
PlanShape read_hf_shape(const std::string& path);

}  // namespace zerorun
