#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "train/model/gpt_config.h"
#include "zerorun/device.h"

// The memory of activations: values that forward stores for backward.
namespace zerorun::train {

// The most memory for logits, unless one row takes more: those of a large batch are computed in
// pieces.
inline constexpr double kLogitsNbytes = 1 << 30;

// The rows of which logits are in memory at once, each of `nbytes`.
inline double logits_rows(double rows, double nbytes) {
  return std::min(rows, std::max(1.0, std::floor(kLogitsNbytes / nbytes)));
}

// The memory that a model allocates for each token of a micro-batch beside the logits, with
// activations in `dtype`; a double, since no size is too large to ask for.
inline double activation_nbytes_per_token(const GptConfig& config, bool recompute, DType dtype) {
  const auto width = static_cast<double>(config.width);
  const auto inner = static_cast<double>(config.inner);
  const auto layers = static_cast<double>(config.layers);
  const double kept_layers = recompute ? 1.0 : layers;
  const double scratch = 2.0 * width + inner + std::max(inner, 3.0 * width);
  const double residual = (layers + 1.0) * width;
  const double values = kept_layers * (5.0 * width + inner) + scratch + residual + width;
  const double sums = kept_layers * (4.0 + static_cast<double>(config.heads)) + 2.0;
  const double indices = 4.0;  // TokenBatch
  return values * static_cast<double>(size_of(dtype)) + sums * sizeof(float) +
         indices * sizeof(int32_t);
}

// The memory for the logits of a micro-batch.
inline double logits_nbytes(const GptConfig& config, DType dtype, double tokens) {
  const double row = static_cast<double>(config.vocabulary) * static_cast<double>(size_of(dtype));
  return logits_rows(tokens, row) * row;
}

// Rows of `width` elements on the device.
class Activation {
 public:
  Activation(Device& device, DType dtype, int64_t rows, int64_t width)
      : buffer_(device.allocate(static_cast<size_t>(rows * width) * size_of(dtype),
                                MemoryCategory::activations)),
        dtype_(dtype),
        rows_(rows),
        width_(width) {}
  TensorView rows(int64_t first, int64_t count) const {
    return view_of(buffer_, dtype_, count * width_,
                   static_cast<size_t>(first * width_) * size_of(dtype_));
  }
  TensorView first(int64_t count) const { return rows(0, count); }
  TensorView all() const { return first(rows_); }

 private:
  Buffer buffer_;
  DType dtype_;
  int64_t rows_;
  int64_t width_;
};

// Activations of one block. Outputs of normalisations and of GELU are recomputed in backward.
struct BlockActivations {
  BlockActivations(Device& device, const GptConfig& config, DType dtype, int64_t rows)
      : moments_1(device, DType::fp32, rows, 2),
        qkv(device, dtype, rows, 3 * config.width),
        log_sum(device, DType::fp32, rows, config.heads),
        attended(device, dtype, rows, config.width),
        middle(device, dtype, rows, config.width),
        moments_2(device, DType::fp32, rows, 2),
        hidden(device, dtype, rows, config.inner) {}

  Activation moments_1;
  Activation qkv;
  Activation log_sum;
  Activation attended;  // output of attention, before its projection
  Activation middle;    // the residual stream between attention and feed-forward
  Activation moments_2;
  Activation hidden;  // hidden values of the feed-forward part, before GELU
};

// Memory that all blocks share.
struct Scratch {
  Scratch(Device& device, const GptConfig& config, DType dtype, int64_t rows)
      : normal(device, dtype, rows, config.width),
        dnormal(device, dtype, rows, config.width),
        active(device, dtype, rows, config.inner),
        wide(device, dtype, rows, std::max(config.inner, 3 * config.width)),
        dx(device, dtype, rows, config.width) {}

  Activation normal;   // output of a normalisation
  Activation dnormal;  // gradient of that, or of the output of attention
  Activation active;   // output of GELU
  Activation wide;     // gradient of the hidden values, or of query, key and value
  Activation dx;       // gradient of the residual stream
};

}  // namespace zerorun::train
