#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "train/model/model.h"

namespace zerorun::train {

struct SamplingOptions {
  int64_t tokens = 256;
  double temperature = 1.0;  // 0: always take the most likely token
  int64_t top_k = 0;         // 0: all
  uint64_t seed = 1;
};

// Returns a token sampled from softmax(logits / temperature) of the top_k largest logits. `uniform`
// is a random number in [0, 1).
int32_t draw_token(std::span<const float> logits, const SamplingOptions& options, double uniform);

// Returns the model's continuation of the prompt, which must not be empty. When the context is
// full, its older half is dropped. All ranks generate the same text, because all have to take part
// in gathers.
std::vector<int32_t> generate(Model& model, std::vector<int32_t> prompt,
                              const SamplingOptions& options);

// Makes text that a byte-level model has generated safe to print: invalid UTF-8 and control
// characters other than line breaks and tabs become U+FFFD.
std::string sample_text(std::string_view bytes);

}  // namespace zerorun::train
