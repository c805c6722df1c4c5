#include "train/cuda/cuda_kernels.h"

#include "core/check.h"
#include "device/cuda/runtime/cuda_error.h"
#include "device/cuda/runtime/cuda_stream.h"
#include "train/cuda/attention.h"
#include "train/cuda/checks.h"
#include "train/cuda/column_sums.h"
#include "train/cuda/embedding.h"
#include "train/cuda/gelu.h"
#include "train/cuda/layer_norm.h"

namespace zerorun::train::cuda {

namespace {

constexpr int64_t kRowAlignment = 128;  // bytes, of logits

// The stream's handle, with its device made the calling thread's: kernels are launched on that.
cudaStream_t enter(Stream& stream) {
  const CudaStream& cuda = cuda_stream(stream);
  check_cuda(cudaSetDevice(cuda.device()), "cudaSetDevice");
  return cuda.handle();
}

// y^T[out, rows] = weight^T * x^T
Product forward_product(const LinearShape& shape) {
  return {.rows = shape.out,
          .cols = shape.rows,
          .inner = shape.in,
          .lda = shape.out,
          .ldb = shape.stride(),
          .ldd = shape.out};
}

// x^T[in, rows] = weight * y^T
Product transposed_product(const LinearShape& shape) {
  return {.rows = shape.in,
          .cols = shape.rows,
          .inner = shape.out,
          .transpose_a = true,
          .lda = shape.out,
          .ldb = shape.out,
          .ldd = shape.stride()};
}

// weight^T[out, in] = dy^T * x
Product gradient_product(const LinearShape& shape) {
  return {.rows = shape.out,
          .cols = shape.in,
          .inner = shape.rows,
          .transpose_b = true,
          .lda = shape.out,
          .ldb = shape.stride(),
          .ldd = shape.out};
}

}  // namespace

CudaKernels::CudaKernels(Device& device, const KernelOptions& options, const CublasLt& lt,
                         FusedAttention attention)
    : device_(device),
      stream_(device.inline_stream()),
      handle_(enter(stream_)),
      options_(options),
      matmul_(lt, options.tf32),
      attention_(std::move(attention)),
      workspace_(device, stream_),
      loss_(device.allocate(sizeof(double), MemoryCategory::other)) {
  clear_loss();
}

// Memory goes back to the device: nothing may still work on it.
CudaKernels::~CudaKernels() { cudaStreamSynchronize(handle_); }

std::string CudaKernels::libraries() const {
  const std::string products = fmt::format("cuBLASLt {}", matmul_.version());
  if (attention_.cudnn) return fmt::format("{}, cuDNN {}", products, attention_.cudnn->version());
  return fmt::format("{}, plain attention: {}", products, attention_.why_not);
}

int64_t CudaKernels::logits_stride(int64_t vocabulary) const {
  const int64_t aligned = kRowAlignment / static_cast<int64_t>(size_of(options_.dtype));
  return (vocabulary + aligned - 1) / aligned * aligned;
}

bool CudaKernels::multiply(const Product& product, const ProductTensors& tensors) {
  return matmul_.multiply(handle_, product, tensors, workspace_);
}

void CudaKernels::multiply_plainly(const Product& product, const ProductTensors& tensors) {
  const bool done = multiply(product, tensors);
  ZR_CHECK(done, "a product without epilogue was refused");
}

void CudaKernels::linear(const LinearShape& shape, TensorView x, TensorView weight, TensorView bias,
                         TensorView residual, TensorView y) {
  check_dtype(options_.dtype, {x, weight, bias, residual, y}, "linear");
  const Product product = forward_product(shape);
  ProductTensors tensors{.a = weight, .b = x, .d = y, .c = residual};
  if (!bias.empty()) {
    tensors.bias = bias;
    tensors.epilogue = Epilogue::bias;
    if (multiply(product, tensors)) return;
    tensors.bias = {};
    tensors.epilogue = Epilogue::none;
  }
  multiply_plainly(product, tensors);
  if (!bias.empty()) add_bias(handle_, bias, y);
}

void CudaKernels::linear_gelu(const LinearShape& shape, TensorView x, TensorView weight,
                              TensorView bias, TensorView hidden, TensorView active) {
  check_dtype(options_.dtype, {x, weight, bias, hidden, active}, "linear_gelu");
  const ProductTensors fused{.a = weight,
                             .b = x,
                             .d = active,
                             .bias = bias,
                             .aux = hidden,
                             .epilogue = Epilogue::bias_gelu};
  if (options_.gelu_epilogue && multiply(forward_product(shape), fused)) return;
  linear(shape, x, weight, bias, {}, hidden);
  gelu(handle_, hidden, active);
}

void CudaKernels::linear_transposed(const LinearShape& shape, TensorView y, TensorView weight,
                                    TensorView x) {
  check_dtype(options_.dtype, {y, weight, x}, "linear_transposed");
  multiply_plainly(transposed_product(shape), {.a = weight, .b = y, .d = x});
}

void CudaKernels::linear_transposed_gelu(const LinearShape& shape, TensorView dy, TensorView weight,
                                         TensorView hidden, TensorView active, TensorView dhidden) {
  check_dtype(options_.dtype, {dy, weight, hidden, active, dhidden}, "linear_transposed_gelu");
  const ProductTensors fused{
      .a = weight, .b = dy, .d = dhidden, .aux = hidden, .epilogue = Epilogue::gelu_gradient};
  if (!options_.gelu_epilogue || !multiply(transposed_product(shape), fused)) {
    linear_transposed(shape, dy, weight, dhidden);
    gelu_backward(handle_, hidden, dhidden);
  }
  gelu(handle_, hidden, active);
}

void CudaKernels::linear_gradients(const LinearShape& shape, TensorView x, TensorView dy,
                                   const GradientView& weight, const GradientView& bias) {
  check_dtype(options_.dtype, {x, dy}, "linear_gradients");
  const Product product = gradient_product(shape);
  ProductTensors tensors{.a = dy, .b = x, .d = weight.view};
  if (weight.accumulate) tensors.c = weight.view;
  // The epilogue cannot add to it.
  if (options_.bias_gradient_epilogue && !bias.view.empty() && !bias.accumulate) {
    tensors.bias = bias.view;
    tensors.epilogue = Epilogue::bias_gradient;
    if (multiply(product, tensors)) return;
    tensors.bias = {};
    tensors.epilogue = Epilogue::none;
  }
  multiply_plainly(product, tensors);
  if (bias.view.empty()) return;
  column_sums(handle_, shape.rows, dy, workspace_.floats(part_sums_numel(1, shape.out)), bias);
}

void CudaKernels::layer_norm(const LayerNormShape& shape, TensorView x, TensorView gain,
                             TensorView bias, TensorView moments, TensorView y) {
  cuda::layer_norm(handle_, shape, x, gain, bias, moments, y);
}

void CudaKernels::layer_norm_backward(const LayerNormShape& shape, const LayerNormState& state,
                                      TensorView dy, const LayerNormGradients& gradients) {
  cuda::layer_norm_backward(handle_, shape, state, dy, gradients,
                            workspace_.floats(layer_norm_scratch(shape.width)));
}

void CudaKernels::attention(const AttentionShape& shape, TensorView qkv, TensorView log_sum,
                            TensorView out) {
  check_dtype(options_.dtype, {qkv, out}, "attention");
  if (attention_.cudnn && attention_.cudnn->forward(handle_, shape, qkv, log_sum, out, workspace_))
    return;
  cuda::attention(handle_, shape, qkv, log_sum, out);
}

void CudaKernels::attention_backward(const AttentionShape& shape, const AttentionState& state,
                                     TensorView dout, TensorView dqkv) {
  check_dtype(options_.dtype, {state.qkv, state.out, dout, dqkv}, "attention_backward");
  if (attention_.cudnn && attention_.cudnn->backward(handle_, shape, state, dout, dqkv, workspace_))
    return;
  float* const means = workspace_.floats(shape.batch * shape.seq_len * shape.heads);
  cuda::attention_backward(handle_, shape, state, dout, dqkv, means);
}

void CudaKernels::embed(const TokenGrid& grid, TensorView wte, TensorView wpe, TensorView x) {
  cuda::embed(handle_, grid, wte, wpe, x);
}

void CudaKernels::embed_backward(const TokenGrid& grid, const TokenOrder& order, TensorView dx,
                                 const GradientView& wte, const GradientView& wpe) {
  cuda::embed_backward(handle_, grid, order, dx, wte, wpe);
}

LossBuffers CudaKernels::loss_buffers(int64_t rows) {
  return {workspace_.floats(rows), reinterpret_cast<double*>(loss_.data())};
}

void CudaKernels::cross_entropy(const LogitsShape& shape, const int32_t* targets,
                                TensorView logits) {
  cuda::cross_entropy(handle_, shape, targets, logits, loss_buffers(shape.rows));
}

void CudaKernels::cross_entropy_gradient(const LogitsShape& shape, const int32_t* targets,
                                         float loss_scale, TensorView logits) {
  cuda::cross_entropy_gradient(handle_, shape, targets, loss_scale, logits,
                               loss_buffers(shape.rows));
}

void CudaKernels::clear_loss() {
  check_cuda(cudaMemsetAsync(loss_.data(), 0, sizeof(double), handle_),
             "cudaMemsetAsync of the loss");
}

void CudaKernels::move_loss(TensorView to) {
  cuda::move_loss(handle_, reinterpret_cast<double*>(loss_.data()), to.as<float>());
}

double CudaKernels::take_loss() {
  double loss = 0.0;
  device_.download(stream_, view_of(loss_, DType::uint8, sizeof(loss)), &loss);
  clear_loss();
  stream_.synchronize();
  return loss;
}

}  // namespace zerorun::train::cuda
