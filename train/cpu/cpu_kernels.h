#pragma once

#include <string>
#include <utility>
#include <vector>

#include "train/cpu/matrix.h"
#include "train/model/kernels.h"

namespace zerorun::train {

// Kernels on the host, in fp32: oneDNN for matrix products, Highway for the rest, OpenMP threads.
// Each operation is in the file of its name.
class CpuKernels final : public Kernels {
 public:
  std::string libraries() const override { return {}; }
  DType activation_dtype() const override { return DType::fp32; }
  int64_t logits_stride(int64_t vocabulary) const override { return vocabulary; }

  void linear(const LinearShape& shape, TensorView x, TensorView weight, TensorView bias,
              TensorView residual, TensorView y) override;
  void linear_gelu(const LinearShape& shape, TensorView x, TensorView weight, TensorView bias,
                   TensorView hidden, TensorView active) override;
  void linear_transposed(const LinearShape& shape, TensorView y, TensorView weight,
                         TensorView x) override;
  void linear_transposed_gelu(const LinearShape& shape, TensorView dy, TensorView weight,
                              TensorView hidden, TensorView active, TensorView dhidden) override;
  void linear_gradients(const LinearShape& shape, TensorView x, TensorView dy,
                        const GradientView& weight, const GradientView& bias) override;

  void layer_norm(const LayerNormShape& shape, TensorView x, TensorView gain, TensorView bias,
                  TensorView moments, TensorView y) override;
  void layer_norm_backward(const LayerNormShape& shape, const LayerNormState& state, TensorView dy,
                           const LayerNormGradients& gradients) override;

  void attention(const AttentionShape& shape, TensorView qkv, TensorView log_sum,
                 TensorView out) override;
  void attention_backward(const AttentionShape& shape, const AttentionState& state, TensorView dout,
                          TensorView dqkv) override;

  void embed(const TokenGrid& grid, TensorView wte, TensorView wpe, TensorView x) override;
  void embed_backward(const TokenGrid& grid, const TokenOrder& order, TensorView dx,
                      const GradientView& wte, const GradientView& wpe) override;

  void cross_entropy_gradient(const LogitsShape& shape, const int32_t* targets, float loss_scale,
                              TensorView logits) override;
  double take_loss() override { return std::exchange(loss_, 0.0); }
  void move_loss(TensorView to) override { *to.as<float>() = static_cast<float>(take_loss()); }

 private:
  struct GemmWeight {  // stored as [inner, cols] or, transposed, as [cols, inner]
    TensorView weight;
    bool transposed = false;
  };
  // c[rows, cols] = beta * c + a[rows, inner] * weight
  void multiply(const GemmSize& size, const float* a, const GemmWeight& b, float beta, float* c);
  float* panel(int64_t rows, int64_t cols);

  std::vector<float> panel_;  // scratch: a part of a weight or of its gradient in fp32
  double loss_ = 0.0;
};

// The elements of an activation; null when it is empty.
float* floats(TensorView activation);

}  // namespace zerorun::train
