#include "examples/train/activations.h"

#include <algorithm>

namespace zerorun::train {

double activation_nbytes_per_token(const GptConfig& config, bool recompute) {
  const auto width = static_cast<double>(config.width);
  const auto inner = static_cast<double>(config.inner);
  const auto layers = static_cast<double>(config.layers);
  const double block = 4.0 + 5.0 * width + static_cast<double>(config.heads) + inner;
  const double scratch = 2.0 * width + inner + std::max(inner, 3.0 * width);
  const double residual = (layers + 1.0) * width;
  const double head = 2.0 + static_cast<double>(config.vocabulary) + width;
  const double floats = (recompute ? 1.0 : layers) * block + scratch + residual + head;
  return floats * sizeof(float);
}

}  // namespace zerorun::train
