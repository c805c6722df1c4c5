#pragma once

#include <vector>

#include "examples/train/cpu/matmul.h"
#include "examples/train/kernels.h"

namespace zerorun::train {

// Kernels on the host: oneDNN for matrix products, Highway for the rest, OpenMP threads.
class CpuKernels final : public Kernels {
 public:
  void linear(const LinearShape& shape, const float* x, TensorView weight, TensorView bias,
              const float* residual, float* y) override;
  void linear_transposed(const LinearShape& shape, const float* y, TensorView weight,
                         float* x) override;
  void linear_weight_gradient(const LinearShape& shape, const float* x, const float* dy,
                              GradientView weight) override;
  void bias_gradient(int64_t rows, int64_t width, const float* dy, GradientView bias) override;

  void layer_norm(const LayerNormShape& shape, const float* x, TensorView gain, TensorView bias,
                  float* moments, float* y) override;
  void layer_norm_backward(const LayerNormShape& shape, const LayerNormState& state,
                           const float* dy, const LayerNormGradients& gradients) override;

  void gelu(int64_t numel, const float* x, float* y) override;
  void gelu_backward(int64_t numel, const float* x, float* y, float* dy_to_dx) override;

  void attention(const AttentionShape& shape, const float* qkv, float* log_sum,
                 float* out) override;
  void attention_backward(const AttentionShape& shape, const AttentionState& state,
                          const float* dout, float* dqkv) override;

  void embed(const TokenGrid& grid, TensorView wte, TensorView wpe, float* x) override;
  void embed_backward(const TokenGrid& grid, const float* dx, GradientView wte,
                      GradientView wpe) override;

  double cross_entropy(int64_t rows, int64_t vocabulary, std::span<const int32_t> targets,
                       const float* logits) override;
  double cross_entropy_gradient(int64_t rows, int64_t vocabulary, std::span<const int32_t> targets,
                                float loss_scale, float* logits) override;

 private:
  Matmul matmul_;
  std::vector<float> gain_;
  std::vector<float> bias_;
};

}  // namespace zerorun::train
