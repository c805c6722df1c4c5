#include "train/cpu/cpu_kernels.h"

#include <algorithm>

#include "core/check.h"
#include "train/cpu/attention.h"
#include "train/cpu/cross_entropy.h"
#include "train/cpu/elementwise.h"
#include "train/cpu/embedding.h"
#include "train/cpu/layer_norm.h"

namespace zerorun::train {

namespace {

// The elements of an activation; null when it is empty.
float* floats(TensorView activation) {
  ZR_CHECK(activation.dtype == DType::fp32, "activations on the CPU are fp32, got {}",
           name_of(activation.dtype));
  return activation.as<float>();
}

void check_dense(const LinearShape& shape) {
  ZR_CHECK(shape.stride() == shape.in, "rows of {} elements lie {} apart", shape.in,
           shape.stride());
}

void check_dense(const LogitsShape& shape) {
  ZR_CHECK(shape.stride == shape.vocabulary, "rows of {} logits lie {} apart", shape.vocabulary,
           shape.stride);
}

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

void CpuKernels::linear(const LinearShape& shape, TensorView x, TensorView weight, TensorView bias,
                        TensorView residual, TensorView y) {
  check_dense(shape);
  const bool start = !bias.empty() || !residual.empty();
  if (start) start_rows(shape.rows, shape.out, bias, floats(residual), floats(y));
  matmul_.forward(shape, floats(x), weight, start ? 1.0F : 0.0F, floats(y));
}

void CpuKernels::linear_gelu(const LinearShape& shape, TensorView x, TensorView weight,
                             TensorView bias, TensorView hidden, TensorView active) {
  linear(shape, x, weight, bias, {}, hidden);
  gelu(shape.rows * shape.out, floats(hidden), floats(active));
}

void CpuKernels::linear_transposed(const LinearShape& shape, TensorView y, TensorView weight,
                                   TensorView x) {
  check_dense(shape);
  matmul_.transposed(shape, floats(y), weight, floats(x));
}

void CpuKernels::linear_transposed_gelu(const LinearShape& shape, TensorView dy, TensorView weight,
                                        TensorView hidden, TensorView active, TensorView dhidden) {
  linear_transposed(shape, dy, weight, dhidden);
  gelu_backward(shape.rows * shape.in, floats(hidden), floats(active), floats(dhidden));
}

void CpuKernels::linear_gradients(const LinearShape& shape, TensorView x, TensorView dy,
                                  const GradientView& weight, const GradientView& bias) {
  check_dense(shape);
  matmul_.weight_gradient(shape, floats(x), floats(dy), weight);
  if (bias.view.empty()) return;
  float* const sums = sized(bias_, shape.out);
  column_sums(shape.rows, shape.out, floats(dy), sums);
  write_gradient(sums, bias);
}

void CpuKernels::layer_norm(const LayerNormShape& shape, TensorView x, TensorView gain,
                            TensorView bias, TensorView moments, TensorView y) {
  train::layer_norm(shape, floats(x), {in_fp32(gain, gain_), in_fp32(bias, bias_)}, floats(moments),
                    floats(y));
}

void CpuKernels::layer_norm_backward(const LayerNormShape& shape, const LayerNormState& state,
                                     TensorView dy, const LayerNormGradients& gradients) {
  std::vector<float> sums(static_cast<size_t>(2 * shape.width));
  const LayerNormSums halves{sums.data(), sums.data() + shape.width};
  float* const dx = floats(gradients.dx.view);
  if (!gradients.dx.accumulate) std::fill_n(dx, shape.rows * shape.width, 0.0F);
  train::layer_norm_backward(shape, floats(state.x), floats(state.moments),
                             in_fp32(state.gain, gain_), floats(dy), dx, halves);
  write_gradient(halves.gain, gradients.gain);
  write_gradient(halves.bias, gradients.bias);
}

void CpuKernels::attention(const AttentionShape& shape, TensorView qkv, TensorView log_sum,
                           TensorView out) {
  train::attention(shape, floats(qkv), floats(log_sum), floats(out));
}

void CpuKernels::attention_backward(const AttentionShape& shape, const AttentionState& state,
                                    TensorView dout, TensorView dqkv) {
  train::attention_backward(shape, state, floats(dout), floats(dqkv));
}

void CpuKernels::embed(const TokenGrid& grid, TensorView wte, TensorView wpe, TensorView x) {
  train::embed(grid, wte, wpe, floats(x));
}

void CpuKernels::embed_backward(const TokenGrid& grid, const TokenOrder& order, TensorView dx,
                                const GradientView& wte, const GradientView& wpe) {
  train::embed_backward(grid, order, floats(dx), wte, wpe);
}

void CpuKernels::cross_entropy(const LogitsShape& shape, const int32_t* targets,
                               TensorView logits) {
  check_dense(shape);
  loss_ += train::cross_entropy(shape.rows, shape.vocabulary, targets, floats(logits));
}

void CpuKernels::cross_entropy_gradient(const LogitsShape& shape, const int32_t* targets,
                                        float loss_scale, TensorView logits) {
  check_dense(shape);
  loss_ += train::cross_entropy_gradient(shape.rows, shape.vocabulary, targets, loss_scale,
                                         floats(logits));
}

}  // namespace zerorun::train
