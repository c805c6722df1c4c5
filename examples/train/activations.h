#pragma once

#include <cstdint>
#include <vector>

#include "examples/train/gpt_config.h"
#include "zerorun/device.h"

// What forward keeps for backward.
namespace zerorun::train {

// What a model allocates for each token of a micro-batch; a double since no size is too large to
// ask for.
double activation_nbytes_per_token(const GptConfig& config, bool recompute);

// An fp32 matrix on the device.
class FloatBuffer {
 public:
  FloatBuffer() = default;
  FloatBuffer(Device& device, int64_t numel)
      : buffer_(device.allocate(static_cast<size_t>(numel) * sizeof(float),
                                MemoryCategory::activations)) {}
  float* data() const { return view_of(buffer_, DType::fp32, 0).as<float>(); }

 private:
  Buffer buffer_;
};

// Of one block; normalised values and GELU's output are computed again in backward.
struct BlockActivations {
  BlockActivations(Device& device, const GptConfig& config, int64_t rows)
      : moments_1(device, 2 * rows),
        qkv(device, 3 * rows * config.width),
        log_sum(device, rows * config.heads),
        attended(device, rows * config.width),
        middle(device, rows * config.width),
        moments_2(device, 2 * rows),
        hidden(device, rows * config.inner) {}

  FloatBuffer moments_1;
  FloatBuffer qkv;
  FloatBuffer log_sum;
  FloatBuffer attended;  // attention's output, before its projection
  FloatBuffer middle;    // the residual stream between attention and feed-forward
  FloatBuffer moments_2;
  FloatBuffer hidden;  // feed-forward, before GELU
};

// Shared by all blocks.
struct Scratch {
  Scratch(Device& device, const GptConfig& config, int64_t rows)
      : normal(device, rows * config.width),
        dnormal(device, rows * config.width),
        active(device, rows * config.inner),
        wide(device, rows * std::max(config.inner, 3 * config.width)) {}

  FloatBuffer normal;   // a normalisation's output
  FloatBuffer dnormal;  // its gradient, or that of attention's output
  FloatBuffer active;   // GELU's output
  FloatBuffer wide;     // the gradient of the hidden values, or of query, key and value
};

}  // namespace zerorun::train
