#pragma once

#include <memory>
#include <string>

#include "train/cuda/cross_entropy.h"
#include "train/cuda/cudnn_attention.h"
#include "train/cuda/matmul.h"
#include "train/cuda/workspace.h"
#include "train/model/kernel_options.h"
#include "train/model/kernels.h"

namespace zerorun::train::cuda {

// cuDNN's attention, or why plain kernels take its place.
struct FusedAttention {
  std::unique_ptr<CudnnAttention> cudnn;
  std::string why_not;
};

// Kernels on a GPU, on one thread. Activations, and so the residual stream, have the parameters'
// dtype; products are cuBLASLt's with biases, GELU and their gradients in its epilogues, attention
// is cuDNN's where it can be, and the rest are the kernels of this folder.
class CudaKernels final : public Kernels {
 public:
  // The device must outlive it.
  CudaKernels(Device& device, const KernelOptions& options, const CublasLt& lt,
              FusedAttention attention);
  ~CudaKernels() override;

  std::string libraries() const override;
  DType activation_dtype() const override { return options_.dtype; }
  // Rows that begin at multiples of 128 bytes, whatever the vocabulary: products need that.
  int64_t logits_stride(int64_t vocabulary) const override;

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

  void cross_entropy(const LogitsShape& shape, const int32_t* targets, TensorView logits) override;
  void cross_entropy_gradient(const LogitsShape& shape, const int32_t* targets, float loss_scale,
                              TensorView logits) override;
  double take_loss() override;
  void move_loss(TensorView to) override;

 private:
  bool multiply(const Product& product, const ProductTensors& tensors);
  void multiply_plainly(const Product& product, const ProductTensors& tensors);
  LossBuffers loss_buffers(int64_t rows);
  void clear_loss();

  Device& device_;
  Stream& stream_;  // the device's inline stream
  const cudaStream_t handle_;
  const KernelOptions options_;
  Matmul matmul_;
  const FusedAttention attention_;
  Workspace workspace_;
  Buffer loss_;  // a double: losses since take_loss
};

}  // namespace zerorun::train::cuda
