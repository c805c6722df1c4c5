#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/build_id.h"
#include "zerorun/device.h"
#include "zerorun/engine.h"
#include "zerorun/tensor.h"

namespace zerorun::train {

struct KernelOptions {
  DType dtype = DType::fp32;  // dtype of parameters and gradients
  bool tf32 = false;          // compute fp32 products in TF32; CUDA only
  // Maximum bytes that cuDNN may use for gradients of attention's probabilities; unset: no limit.
  // CUDA and 16 bits only.
  std::optional<int64_t> attention_workspace{};
  // cuDNN may add up gradients of queries in any order, so that two runs differ in their last bits.
  // CUDA and 16 bits only.
  bool fast_attention = false;
  // Whether GELU with its derivative, and gradients of biases, are computed with the matrix product
  // next to them or by kernels of their own. Results differ in their last bits. CUDA only.
  bool gelu_epilogue = true;
  bool bias_gradient_epilogue = true;
};

// A product with a weight matrix of shape [in, out] (Hugging Face's Conv1D layout) over `rows`
// tokens.
struct LinearShape {
  int64_t rows = 0;
  int64_t in = 0;
  int64_t out = 0;
  int64_t x_stride = 0;  // elements between rows of x; 0: `in`
  int64_t stride() const { return x_stride == 0 ? in : x_stride; }
};

struct LayerNormShape {
  int64_t rows = 0;
  int64_t width = 0;
  float epsilon = 1e-5F;
};

// Results of the forward of layer normalisation that its backward needs.
struct LayerNormState {
  TensorView x;        // [rows, width]
  TensorView moments;  // fp32 [rows, 2]: mean and 1 / deviation
  TensorView gain;
};

struct LayerNormGradients {
  GradientView dx;
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

// Results of the forward of attention that its backward needs. `log_sum` has the logarithm of the
// softmax's denominator per query and head, in fp32; its layout depends on the kernels.
struct AttentionState {
  TensorView qkv;      // [batch * seq_len, 3 * width]
  TensorView out;      // [batch * seq_len, width]
  TensorView log_sum;  // fp32 [batch * seq_len * heads]
};

// Rows of tokens in device memory, `seq_len` per sequence; the first token of each sequence is at
// position `first`.
struct TokenGrid {
  const int32_t* tokens = nullptr;  // [rows]
  int64_t rows = 0;
  int64_t seq_len = 0;
  int64_t first = 0;
  int64_t width = 0;
};

// The rows of a grid sorted by token, in device memory: the i-th of the distinct tokens is in
// rows[begins[i]] to rows[begins[i + 1] - 1], ascending.
struct TokenOrder {
  const int32_t* rows = nullptr;    // [rows]
  const int32_t* begins = nullptr;  // [distinct + 1]
  int64_t distinct = 0;
};

// Shape of the logits of all tokens of the vocabulary; rows are `stride` elements apart.
struct LogitsShape {
  int64_t rows = 0;
  int64_t vocabulary = 0;
  int64_t stride = 0;
  int64_t mean_rows = 0;  // that a mean is over, of which these are a part; 0: these
  int64_t mean_over() const { return mean_rows > 0 ? mean_rows : rows; }
};

// The arithmetic of a GPT on one device. Activations and their gradients are in device memory with
// dtype activation_dtype(); parameters and their gradients have the engine's dtype (fp32, bf16 or
// fp16); moments, log-sums and losses are fp32. Sums are computed in fp32 or wider. Work is
// submitted to the device's inline stream; only take_loss() waits for it. Results do not depend on
// the addresses of tensors, so they are the same at every stage.
class Kernels {
 public:
  virtual ~Kernels() = default;

  // Returns the names of the libraries that the kernels use, for display; may be "".
  virtual std::string libraries() const = 0;
  virtual DType activation_dtype() const = 0;
  // Returns the number of elements between rows of logits, at least the vocabulary size.
  virtual int64_t logits_stride(int64_t vocabulary) const = 0;

  // y[rows, out] = residual + x[rows, in] * weight + bias; `residual` may be empty or y itself,
  // `bias` may be empty.
  virtual void linear(const LinearShape& shape, TensorView x, TensorView weight, TensorView bias,
                      TensorView residual, TensorView y) = 0;
  // hidden = x * weight + bias; active = gelu(hidden), the tanh approximation ("gelu_new" in
  // Hugging Face's models).
  virtual void linear_gelu(const LinearShape& shape, TensorView x, TensorView weight,
                           TensorView bias, TensorView hidden, TensorView active) = 0;
  // x[rows, in] = y[rows, out] * weight^T
  virtual void linear_transposed(const LinearShape& shape, TensorView y, TensorView weight,
                                 TensorView x) = 0;
  // dhidden[rows, in] = (dy[rows, out] * weight^T) * gelu'(hidden); active = gelu(hidden)
  virtual void linear_transposed_gelu(const LinearShape& shape, TensorView dy, TensorView weight,
                                      TensorView hidden, TensorView active, TensorView dhidden) = 0;
  // weight += or = x^T * dy; bias += or = sum of dy's rows. `bias.view` may be empty.
  virtual void linear_gradients(const LinearShape& shape, TensorView x, TensorView dy,
                                const GradientView& weight, const GradientView& bias) = 0;

  // Writes mean and 1 / standard deviation of each row to `moments`.
  virtual void layer_norm(const LayerNormShape& shape, TensorView x, TensorView gain,
                          TensorView bias, TensorView moments, TensorView y) = 0;
  virtual void layer_norm_backward(const LayerNormShape& shape, const LayerNormState& state,
                                   TensorView dy, const LayerNormGradients& gradients) = 0;

  // Causal softmax(query * key^T / sqrt(width / heads)) * value of each head.
  virtual void attention(const AttentionShape& shape, TensorView qkv, TensorView log_sum,
                         TensorView out) = 0;
  virtual void attention_backward(const AttentionShape& shape, const AttentionState& state,
                                  TensorView dout, TensorView dqkv) = 0;

  // x[row] = wte[token] + wpe[position]
  virtual void embed(const TokenGrid& grid, TensorView wte, TensorView wpe, TensorView x) = 0;
  virtual void embed_backward(const TokenGrid& grid, const TokenOrder& order, TensorView dx,
                              const GradientView& wte, const GradientView& wpe) = 0;

  // Adds the rows' part of the mean over LogitsShape::mean_over() rows of
  // -log softmax(logits)[target] to the loss, and replaces the logits by the gradient of loss_scale
  // times that mean. `targets` are in device memory.
  virtual void cross_entropy_gradient(const LogitsShape& shape, const int32_t* targets,
                                      float loss_scale, TensorView logits) = 0;
  // Returns the sum of the losses that were added since the last call. Waits for them.
  virtual double take_loss() = 0;
  // Writes that sum to one fp32 element on the device instead, without waiting.
  virtual void move_loss(TensorView to) = 0;
};

// The kernels of libzerorun_train_cuda.so, a plugin (device/plugin.h).
struct CudaKernelsPlugin {
  BuildId build;
  std::unique_ptr<Kernels> (*make)(Device& device, const KernelOptions& options);
};
inline constexpr const char* kCudaKernelsEntry = "zerorun_train_cuda_kernels";

// The memory of cuDNN's backward of attention besides its inputs and outputs. Sizes are doubles,
// since no size is too large to ask for.

// True if cuDNN has kernels for it; ours need no such memory.
inline bool cudnn_has_attention(const AttentionShape& shape, DType dtype) {
  const int64_t width = shape.width / shape.heads;
  return dtype != DType::fp32 && shape.first == 0 && width % 8 == 0 && width <= 128;
}

// Bytes for gradients of attention's probabilities, which the deterministic backward takes unless
// it is told not to. The tiles are those of cudnn_frontend's scaled_dot_product_flash_attention.h.
inline double attention_workspace(const AttentionShape& shape) {
  const int64_t queries = (shape.seq_len + 63) / 64 * 64;
  const int64_t keys = (shape.seq_len + 127) / 128 * 128;
  return 2.0 * static_cast<double>(shape.batch * shape.heads) * static_cast<double>(queries) *
         static_cast<double>(keys);
}

// Bytes of the backward that adds up gradients of queries in any order (--fast_attention): those in
// fp32, and a sum for each query and head.
inline double fast_attention_workspace(const AttentionShape& shape) {
  return sizeof(float) * static_cast<double>(shape.batch) * static_cast<double>(shape.seq_len) *
         static_cast<double>(shape.width + shape.heads);
}

// Creates the kernels for a device, which must outlive them. Throws ConfigError for options that
// would have no effect on this device, and DeviceError if the library of the CUDA kernels or one
// that it needs is missing.
std::unique_ptr<Kernels> make_kernels(Device& device, const KernelOptions& options);

}  // namespace zerorun::train
