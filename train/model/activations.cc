#include "train/model/activations.h"

namespace zerorun::train {

double activation_nbytes_per_token(const GptConfig& config, bool recompute, DType dtype) {
  const auto width = static_cast<double>(config.width);
  const auto inner = static_cast<double>(config.inner);
  const auto layers = static_cast<double>(config.layers);
  const double kept_layers = recompute ? 1.0 : layers;
  const double scratch = 2.0 * width + inner + std::max(inner, 3.0 * width);
  const double residual = (layers + 1.0) * width;
  const double head = static_cast<double>(config.vocabulary) + width;
  const double values = kept_layers * (5.0 * width + inner) + scratch + residual + head;
  const double sums = kept_layers * (4.0 + static_cast<double>(config.heads)) + 2.0;
  const double indices = 4.0;  // TokenBatch
  return values * static_cast<double>(size_of(dtype)) + sums * sizeof(float) +
         indices * sizeof(int32_t);
}

}  // namespace zerorun::train
