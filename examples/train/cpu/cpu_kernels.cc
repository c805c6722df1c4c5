#include "examples/train/cpu/cpu_kernels.h"

#include "examples/train/cpu/attention.h"
#include "examples/train/cpu/cross_entropy.h"
#include "examples/train/cpu/elementwise.h"
#include "examples/train/cpu/embedding.h"
#include "examples/train/cpu/layer_norm.h"

namespace zerorun::train {

namespace {

// A parameter in fp32: itself, or a copy in `scratch`.
const float* in_fp32(TensorView parameter, std::vector<float>& scratch) {
  if (parameter.dtype == DType::fp32) return parameter.as<float>();
  scratch.resize(static_cast<size_t>(parameter.numel));
  start_rows(1, parameter.numel, parameter, nullptr, scratch.data());
  return scratch.data();
}

float* sized(std::vector<float>& scratch, int64_t numel) {
  scratch.resize(static_cast<size_t>(numel));
  return scratch.data();
}

}  // namespace

void CpuKernels::linear(const LinearShape& shape, const float* x, TensorView weight,
                        TensorView bias, const float* residual, float* y) {
  const bool start = !bias.empty() || residual != nullptr;
  if (start) start_rows(shape.rows, shape.out, bias, residual, y);
  matmul_.forward(shape, x, weight, start ? 1.0F : 0.0F, y);
}

void CpuKernels::linear_transposed(const LinearShape& shape, const float* y, TensorView weight,
                                   float* x) {
  matmul_.transposed(shape, y, weight, x);
}

void CpuKernels::linear_weight_gradient(const LinearShape& shape, const float* x, const float* dy,
                                        GradientView weight) {
  matmul_.weight_gradient(shape, x, dy, weight);
}

void CpuKernels::bias_gradient(int64_t rows, int64_t width, const float* dy, GradientView bias) {
  float* const sums = sized(bias_, width);
  column_sums(rows, width, dy, sums);
  write_gradient(sums, bias);
}

void CpuKernels::layer_norm(const LayerNormShape& shape, const float* x, TensorView gain,
                            TensorView bias, float* moments, float* y) {
  train::layer_norm(shape, x, {in_fp32(gain, gain_), in_fp32(bias, bias_)}, moments, y);
}

void CpuKernels::layer_norm_backward(const LayerNormShape& shape, const LayerNormState& state,
                                     const float* dy, const LayerNormGradients& gradients) {
  std::vector<float> sums(static_cast<size_t>(2 * shape.width));
  const LayerNormSums halves{sums.data(), sums.data() + shape.width};
  train::layer_norm_backward(shape, state.x, state.moments, in_fp32(state.gain, gain_), dy,
                             gradients.dx, halves);
  write_gradient(halves.gain, gradients.gain);
  write_gradient(halves.bias, gradients.bias);
}

void CpuKernels::gelu(int64_t numel, const float* x, float* y) { train::gelu(numel, x, y); }

void CpuKernels::gelu_backward(int64_t numel, const float* x, float* y, float* dy_to_dx) {
  train::gelu_backward(numel, x, y, dy_to_dx);
}

void CpuKernels::attention(const AttentionShape& shape, const float* qkv, float* log_sum,
                           float* out) {
  train::attention(shape, qkv, log_sum, out);
}

void CpuKernels::attention_backward(const AttentionShape& shape, const AttentionState& state,
                                    const float* dout, float* dqkv) {
  train::attention_backward(shape, state, dout, dqkv);
}

void CpuKernels::embed(const TokenGrid& grid, TensorView wte, TensorView wpe, float* x) {
  train::embed(grid, wte, wpe, x);
}

void CpuKernels::embed_backward(const TokenGrid& grid, const float* dx, GradientView wte,
                                GradientView wpe) {
  train::embed_backward(grid, dx, wte, wpe);
}

double CpuKernels::cross_entropy(int64_t rows, int64_t vocabulary, std::span<const int32_t> targets,
                                 const float* logits) {
  return train::cross_entropy(rows, vocabulary, targets, logits);
}

double CpuKernels::cross_entropy_gradient(int64_t rows, int64_t vocabulary,
                                          std::span<const int32_t> targets, float loss_scale,
                                          float* logits) {
  return train::cross_entropy_gradient(rows, vocabulary, targets, loss_scale, logits);
}

}  // namespace zerorun::train
