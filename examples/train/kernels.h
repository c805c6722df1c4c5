#pragma once

#include <cstdint>
#include <span>

#include "zerorun/engine.h"
#include "zerorun/tensor.h"

namespace zerorun::train {

// A product with a weight matrix of shape [in, out] (Hugging Face's Conv1D layout) over `rows`
// tokens.
struct LinearShape {
  int64_t rows = 0;
  int64_t in = 0;
  int64_t out = 0;
};

struct LayerNormShape {
  int64_t rows = 0;
  int64_t width = 0;
  float epsilon = 1e-5F;
};

// What layer normalisation keeps for its backward.
struct LayerNormState {
  const float* x = nullptr;        // [rows, width]
  const float* moments = nullptr;  // [rows, 2]: mean and 1 / deviation
  TensorView gain;
};

struct LayerNormGradients {
  float* dx = nullptr;  // added to
  GradientView gain;
  GradientView bias;
};

// Sequences of `seq_len` tokens; a row of `qkv` holds query, key and value, each of `width`. Only
// the positions from `first` on are queries.
struct AttentionShape {
  int64_t batch = 0;
  int64_t seq_len = 0;
  int64_t first = 0;
  int64_t heads = 0;
  int64_t width = 0;
};

// What attention keeps for its backward: one log of the softmax's denominator per row and head.
struct AttentionState {
  const float* qkv = nullptr;      // [batch * seq_len, 3 * width]
  const float* out = nullptr;      // [batch * seq_len, width]
  const float* log_sum = nullptr;  // [batch * seq_len, heads]
};

// Tokens in rows of `seq_len`, the first of each row at position `first`.
struct TokenGrid {
  std::span<const int32_t> tokens;
  int64_t seq_len = 0;
  int64_t first = 0;
  int64_t width = 0;
};

// The arithmetic of a GPT on one device. Activations are fp32 in the device's memory; parameters
// and gradients have the engine's dtype (fp32, bf16 or fp16); all arithmetic is fp32. Results do
// not depend on where tensors lie, so they are the same at every stage.
class Kernels {
 public:
  virtual ~Kernels() = default;

  // y[rows, out] = residual + x[rows, in] * weight + bias; `residual` may be null or y itself,
  // `bias` may be empty.
  virtual void linear(const LinearShape& shape, const float* x, TensorView weight, TensorView bias,
                      const float* residual, float* y) = 0;
  // x[rows, in] = y[rows, out] * weight^T
  virtual void linear_transposed(const LinearShape& shape, const float* y, TensorView weight,
                                 float* x) = 0;
  // weight += or = x^T * dy
  virtual void linear_weight_gradient(const LinearShape& shape, const float* x, const float* dy,
                                      GradientView weight) = 0;
  // bias += or = sum of dy's rows
  virtual void bias_gradient(int64_t rows, int64_t width, const float* dy, GradientView bias) = 0;

  // `moments` holds mean and 1/deviation of each row.
  virtual void layer_norm(const LayerNormShape& shape, const float* x, TensorView gain,
                          TensorView bias, float* moments, float* y) = 0;
  virtual void layer_norm_backward(const LayerNormShape& shape, const LayerNormState& state,
                                   const float* dy, const LayerNormGradients& gradients) = 0;

  // GELU with tanh, "gelu_new" in Hugging Face's models.
  virtual void gelu(int64_t numel, const float* x, float* y) = 0;
  // y = gelu(x); dy_to_dx is multiplied with gelu'(x).
  virtual void gelu_backward(int64_t numel, const float* x, float* y, float* dy_to_dx) = 0;

  // Causal softmax(query * key^T / sqrt(width / heads)) * value of each head.
  virtual void attention(const AttentionShape& shape, const float* qkv, float* log_sum,
                         float* out) = 0;
  virtual void attention_backward(const AttentionShape& shape, const AttentionState& state,
                                  const float* dout, float* dqkv) = 0;

  // x[row] = wte[token] + wpe[position]
  virtual void embed(const TokenGrid& grid, TensorView wte, TensorView wpe, float* x) = 0;
  virtual void embed_backward(const TokenGrid& grid, const float* dx, GradientView wte,
                              GradientView wpe) = 0;

  // Mean over the rows of -log softmax(logits)[target].
  virtual double cross_entropy(int64_t rows, int64_t vocabulary, std::span<const int32_t> targets,
                               const float* logits) = 0;
  // The same; replaces the logits by the gradient of loss_scale times the mean.
  virtual double cross_entropy_gradient(int64_t rows, int64_t vocabulary,
                                        std::span<const int32_t> targets, float loss_scale,
                                        float* logits) = 0;
};

}  // namespace zerorun::train
