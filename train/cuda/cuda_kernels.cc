#include "train/cuda/cuda_kernels.h"

#include <utility>

#include "core/check.h"
#include "core/format_bytes.h"
#include "device/cuda/runtime/cuda_error.h"
#include "device/cuda/runtime/cuda_stream.h"
#include "train/cuda/kernels.h"
#include "train/model/kernels.h"

namespace zerorun::train::cuda {

namespace {

// The stream's handle, with its device made the calling thread's: kernels are launched on that.
cudaStream_t enter(Stream& stream) {
  const CudaStream& cuda = cuda_stream(stream);
  check_cuda(cudaSetDevice(cuda.device()), "cudaSetDevice");
  return cuda.handle();
}

// y^T[out, rows] = weight^T * x^T
Product forward_product(const LinearShape& shape) {
  return {shape.out, shape.rows, shape.in, false, false, shape.out, shape.stride(), shape.out};
}

// x^T[in, rows] = weight * y^T
Product transposed_product(const LinearShape& shape) {
  return {shape.in, shape.rows, shape.out, true, false, shape.out, shape.out, shape.stride()};
}

// weight^T[out, in] = dy^T * x
Product gradient_product(const LinearShape& shape) {
  return {shape.out, shape.in, shape.rows, false, true, shape.out, shape.stride(), shape.out};
}

class CudaKernels final : public Kernels {
 public:
  CudaKernels(Device& device, const KernelOptions& options, const CublasLt& lt,
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
  ~CudaKernels() override { cudaStreamSynchronize(handle_); }

  std::string libraries() const override {
    const std::string products = fmt::format("cuBLASLt {}", matmul_.version());
    if (attention_.cudnn) return fmt::format("{}, cuDNN {}", products, attention_.cudnn->version());
    return fmt::format("{}, plain attention: {}", products, attention_.why_not);
  }

  DType activation_dtype() const override { return options_.dtype; }

  // Rows begin at multiples of 128 bytes, whatever the vocabulary: products need that.
  int64_t logits_stride(int64_t vocabulary) const override {
    const int64_t aligned = 128 / static_cast<int64_t>(size_of(options_.dtype));
    return (vocabulary + aligned - 1) / aligned * aligned;
  }

  void linear(const LinearShape& shape, TensorView x, TensorView weight, TensorView bias,
              TensorView residual, TensorView y) override {
    check_dtype(options_.dtype, {x, weight, bias, residual, y}, "linear");
    const Product product = forward_product(shape);
    const ProductTensors tensors{.a = weight, .b = x, .d = y, .c = residual};
    if (!bias.empty() && multiply_with(CUBLASLT_EPILOGUE_BIAS, bias, product, tensors)) return;
    multiply_plainly(product, tensors);
    if (!bias.empty()) add_bias(handle_, bias, y);
  }

  void linear_gelu(const LinearShape& shape, TensorView x, TensorView weight, TensorView bias,
                   TensorView hidden, TensorView active) override {
    check_dtype(options_.dtype, {x, weight, bias, hidden, active}, "linear_gelu");
    const ProductTensors fused{.a = weight,
                               .b = x,
                               .d = active,
                               .bias = bias,
                               .aux = hidden,
                               .epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS};
    if (options_.gelu_epilogue && multiply(forward_product(shape), fused)) return;
    linear(shape, x, weight, bias, {}, hidden);
    gelu(handle_, hidden, active);
  }

  void linear_transposed(const LinearShape& shape, TensorView y, TensorView weight,
                         TensorView x) override {
    check_dtype(options_.dtype, {y, weight, x}, "linear_transposed");
    multiply_plainly(transposed_product(shape), {.a = weight, .b = y, .d = x});
  }

  void linear_transposed_gelu(const LinearShape& shape, TensorView dy, TensorView weight,
                              TensorView hidden, TensorView active, TensorView dhidden) override {
    check_dtype(options_.dtype, {dy, weight, hidden, active, dhidden}, "linear_transposed_gelu");
    const ProductTensors fused{
        .a = weight, .b = dy, .d = dhidden, .aux = hidden, .epilogue = CUBLASLT_EPILOGUE_DGELU};
    if (!options_.gelu_epilogue || !multiply(transposed_product(shape), fused)) {
      linear_transposed(shape, dy, weight, dhidden);
      gelu_backward(handle_, hidden, dhidden);
    }
    gelu(handle_, hidden, active);
  }

  void linear_gradients(const LinearShape& shape, TensorView x, TensorView dy,
                        const GradientView& weight, const GradientView& bias) override {
    check_dtype(options_.dtype, {x, dy}, "linear_gradients");
    const Product product = gradient_product(shape);
    ProductTensors tensors{.a = dy, .b = x, .d = weight.view};
    if (weight.accumulate) tensors.c = weight.view;
    // The epilogue cannot add to it.
    const bool fused = options_.bias_gradient_epilogue && !bias.view.empty() && !bias.accumulate;
    if (fused && multiply_with(CUBLASLT_EPILOGUE_BGRADA, bias.view, product, tensors)) return;
    multiply_plainly(product, tensors);
    if (bias.view.empty()) return;
    column_sums(handle_, shape.rows, dy, workspace_.floats(part_sums_numel(1, shape.out)), bias);
  }

  void layer_norm(const LayerNormShape& shape, TensorView x, TensorView gain, TensorView bias,
                  TensorView moments, TensorView y) override {
    cuda::layer_norm(handle_, shape, x, gain, bias, moments, y);
  }

  void layer_norm_backward(const LayerNormShape& shape, const LayerNormState& state, TensorView dy,
                           const LayerNormGradients& gradients) override {
    cuda::layer_norm_backward(handle_, shape, state, dy, gradients,
                              workspace_.floats(layer_norm_scratch(shape.width)));
  }

  void attention(const AttentionShape& shape, TensorView qkv, TensorView log_sum,
                 TensorView out) override {
    check_dtype(options_.dtype, {qkv, out}, "attention");
    if (attention_.cudnn &&
        attention_.cudnn->forward(handle_, shape, qkv, log_sum, out, workspace_))
      return;
    cuda::attention(handle_, shape, qkv, log_sum, out);
  }

  void attention_backward(const AttentionShape& shape, const AttentionState& state, TensorView dout,
                          TensorView dqkv) override {
    check_dtype(options_.dtype, {state.qkv, state.out, dout, dqkv}, "attention_backward");
    if (attention_.cudnn &&
        attention_.cudnn->backward(handle_, shape, state, dout, dqkv, workspace_))
      return;
    float* const means = workspace_.floats(shape.batch * shape.seq_len * shape.heads);
    cuda::attention_backward(handle_, shape, state, dout, dqkv, means);
  }

  void embed(const TokenGrid& grid, TensorView wte, TensorView wpe, TensorView x) override {
    cuda::embed(handle_, grid, wte, wpe, x);
  }

  void embed_backward(const TokenGrid& grid, const TokenOrder& order, TensorView dx,
                      const GradientView& wte, const GradientView& wpe) override {
    cuda::embed_backward(handle_, grid, order, dx, wte, wpe);
  }

  void cross_entropy_gradient(const LogitsShape& shape, const int32_t* targets, float loss_scale,
                              TensorView logits) override {
    cuda::cross_entropy_gradient(handle_, shape, targets, loss_scale, logits,
                                 loss_buffers(shape.rows));
  }

  void move_loss(TensorView to) override {
    cuda::move_loss(handle_, reinterpret_cast<double*>(loss_.data()), to.as<float>());
  }

  double take_loss() override {
    double loss = 0.0;
    device_.download(stream_, view_of(loss_, DType::uint8, sizeof(loss)), &loss);
    clear_loss();
    stream_.synchronize();
    return loss;
  }

 private:
  bool multiply(const Product& product, const ProductTensors& tensors) {
    return matmul_.multiply(handle_, product, tensors, workspace_);
  }

  void multiply_plainly(const Product& product, const ProductTensors& tensors) {
    const bool done = multiply(product, tensors);
    ZR_CHECK(done, "a product without epilogue was refused");
  }

  bool multiply_with(cublasLtEpilogue_t epilogue, TensorView bias, const Product& product,
                     ProductTensors tensors) {
    tensors.bias = bias;
    tensors.epilogue = epilogue;
    return multiply(product, tensors);
  }

  LossBuffers loss_buffers(int64_t rows) {
    return {workspace_.floats(rows), reinterpret_cast<double*>(loss_.data())};
  }

  void clear_loss() {
    check_cuda(cudaMemsetAsync(loss_.data(), 0, sizeof(double), handle_),
               "cudaMemsetAsync of the loss");
  }

  Device& device_;
  Stream& stream_;  // the device's inline stream
  const cudaStream_t handle_;
  const KernelOptions options_;
  Matmul matmul_;
  const FusedAttention attention_;
  Workspace workspace_;
  Buffer loss_;  // a double: losses since take_loss
};

}  // namespace

std::unique_ptr<Kernels> make_cuda_kernels(Device& device, const KernelOptions& options,
                                           const CublasLt& lt, FusedAttention attention) {
  return std::make_unique<CudaKernels>(device, options, lt, std::move(attention));
}

// Checks before kernels are launched; nvcc cannot compile the messages.
void check_dtype(DType expected, std::initializer_list<TensorView> views, std::string_view kernel) {
  for (const TensorView& view : views) {
    ZR_CHECK(view.data == nullptr || view.dtype == expected, "{}: got {}, expected {}", kernel,
             name_of(view.dtype), name_of(expected));
  }
}

void check_heads(const AttentionShape& shape) {
  const int64_t width = shape.width / shape.heads;
  if (width <= kWidestHead) return;
  fail<ConfigError>(
      "the model's attention heads are {} wide (n_embd {} / n_head {}); on CUDA they may be {} "
      "wide",
      width, shape.width, shape.heads, kWidestHead);
}

void refuse_unused(const KernelOptions& options, std::string_view why) {
  if (options.attention_workspace) {
    fail<ConfigError>(
        "--attention_workspace limits cuDNN's attention, which is not used here: {}; leave it out",
        why);
  }
  if (options.fast_attention) {
    fail<ConfigError>("--fast_attention is cuDNN's, which is not used here: {}; leave it out", why);
  }
}

std::string lacks_attention(const AttentionShape& shape, bool is_ordered, std::string_view why) {
  return fmt::format(
      "has no {} for {} x {} positions, {} heads of {}: the plain kernel is used, which is much "
      "slower{} ({})",
      is_ordered ? "deterministic backward of attention" : "attention", shape.batch, shape.seq_len,
      shape.heads, shape.width / shape.heads,
      is_ordered ? "; a newer cuDNN may have one, and --fast_attention needs none" : "", why);
}

void check_attention_workspace(const AttentionShape& shape, int64_t most,
                               const CudnnVersion& version) {
  const double needed = attention_workspace(shape);
  // cuDNN 9.25 has a backward for Hopper that takes no such workspace.
  const bool has_other_way = version.number >= 92500 && version.architecture == 9;
  if (needed <= static_cast<double>(most) || has_other_way) return;
  fail<ConfigError>(
      "--attention_workspace: attention's backward takes {} for {} x {} positions and {} heads, "
      "but {} are allowed; less needs cuDNN 9.25 and a GPU of compute capability 9 (here: {}.{} "
      "and {}). Allow more, use a smaller micro-batch or sequence, or --fast_attention",
      format_bytes(static_cast<size_t>(needed)), shape.batch, shape.seq_len, shape.heads,
      format_bytes(static_cast<size_t>(most)), version.number / 10000, version.number / 100 % 100,
      version.architecture);
}

}  // namespace zerorun::train::cuda
