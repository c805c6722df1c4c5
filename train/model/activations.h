#pragma once

#include <algorithm>
#include <cstdint>

#include "train/model/gpt_config.h"
#include "zerorun/device.h"

// The memory of activations: values that forward stores for backward.
namespace zerorun::train {

// The memory that a model allocates for each token of a micro-batch, with activations in `dtype`; a
// double, since no size is too large to ask for.
double activation_nbytes_per_token(const GptConfig& config, bool recompute, DType dtype);

// A matrix on the device.
class Activation {
 public:
  Activation() = default;
  Activation(Device& device, DType dtype, int64_t numel)
      : buffer_(device.allocate(static_cast<size_t>(numel) * size_of(dtype),
                                MemoryCategory::activations)),
        dtype_(dtype) {}
  TensorView first(int64_t numel) const { return view_of(buffer_, dtype_, numel); }
  TensorView slice(int64_t begin, int64_t numel) const {
    return view_of(buffer_, dtype_, numel, static_cast<size_t>(begin) * size_of(dtype_));
  }
  TensorView all() const { return first(static_cast<int64_t>(buffer_.nbytes() / size_of(dtype_))); }

 private:
  Buffer buffer_;
  DType dtype_ = DType::fp32;
};

// Activations of one block. Outputs of normalisations and of GELU are recomputed in backward.
struct BlockActivations {
  BlockActivations(Device& device, const GptConfig& config, DType dtype, int64_t rows)
      : moments_1(device, DType::fp32, 2 * rows),
        qkv(device, dtype, 3 * rows * config.width),
        log_sum(device, DType::fp32, rows * config.heads),
        attended(device, dtype, rows * config.width),
        middle(device, dtype, rows * config.width),
        moments_2(device, DType::fp32, 2 * rows),
        hidden(device, dtype, rows * config.inner) {}

  Activation moments_1;
  Activation qkv;
  Activation log_sum;
  Activation attended;  // output of attention, before its projection
  Activation middle;    // the residual stream between attention and feed-forward
  Activation moments_2;
  Activation hidden;  // hidden values of the feed-forward part, before GELU
};

// Scratch memory that all blocks share.
struct Scratch {
  Scratch(Device& device, const GptConfig& config, DType dtype, int64_t rows)
      : normal(device, dtype, rows * config.width),
        dnormal(device, dtype, rows * config.width),
        active(device, dtype, rows * config.inner),
        wide(device, dtype, rows * std::max(config.inner, 3 * config.width)) {}

  Activation normal;   // output of a normalisation
  Activation dnormal;  // gradient of that, or of the output of attention
  Activation active;   // output of GELU
  Activation wide;     // gradient of the hidden values, or of query, key and value
};

// Activations of the last normalisation and of the product with the embedding.
struct HeadActivations {
  HeadActivations(Device& device, int64_t logits_stride, DType dtype, int64_t rows)
      : stride(logits_stride),
        moments(device, DType::fp32, 2 * rows),
        logits(device, dtype, rows * logits_stride) {}

  int64_t stride;  // elements between rows of logits
  Activation moments;
  Activation logits;
};

}  // namespace zerorun::train
