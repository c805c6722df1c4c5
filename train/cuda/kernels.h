#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "train/model/kernels.h"

// The kernels of this folder, each in the .cu file of its name; train/model/kernels.h has the
// contracts.
namespace zerorun::train::cuda {

// Throws InternalError when views that a kernel reads as one type differ in it. Empty ones do not
// count.
void check_dtype(DType expected, std::initializer_list<TensorView> views, std::string_view kernel);

// Causal attention in tiles of queries and keys, so that scores exist for one pair of tiles at a
// time (Dao et al., arXiv:2205.14135): for every GPU, dtype and length, in fp32 without tensor
// cores. Where cuDNN is, it takes the place of these for training in 16 bits (cuda_kernels.h).
// Throws ConfigError for wider heads than this:
inline constexpr int64_t kWidestHead = 256;
void check_heads(const AttentionShape& shape);
void attention(cudaStream_t stream, const AttentionShape& shape, TensorView qkv, TensorView log_sum,
               TensorView out);
// `scratch` holds batch * seq_len * heads fp32 elements.
void attention_backward(cudaStream_t stream, const AttentionShape& shape,
                        const AttentionState& state, TensorView dout, TensorView dqkv,
                        float* scratch);

// Layer normalisation over the last dimension (Ba et al., arXiv:1607.06450).
void layer_norm(cudaStream_t stream, const LayerNormShape& shape, TensorView x, TensorView gain,
                TensorView bias, TensorView moments, TensorView y);
// fp32 elements of scratch that layer_norm_backward needs.
int64_t layer_norm_scratch(int64_t width);
void layer_norm_backward(cudaStream_t stream, const LayerNormShape& shape,
                         const LayerNormState& state, TensorView dy,
                         const LayerNormGradients& gradients, float* scratch);

void embed(cudaStream_t stream, const TokenGrid& grid, TensorView wte, TensorView wpe,
           TensorView x);
// Adds rows in the order of the batch, without atomics: the same bits every time.
void embed_backward(cudaStream_t stream, const TokenGrid& grid, const TokenOrder& order,
                    TensorView dx, const GradientView& wte, const GradientView& wpe);

// Cross entropy of rows of logits. The softmax is never stored: the gradient takes the logits'
// place.
struct LossBuffers {
  float* rows = nullptr;  // scratch, one for each row
  double* sum = nullptr;  // their part of the mean loss is added to it
};

void cross_entropy_gradient(cudaStream_t stream, const LogitsShape& shape, const int32_t* targets,
                            float loss_scale, TensorView logits, const LossBuffers& loss);
// Writes the sum to `to` and clears it.
void move_loss(cudaStream_t stream, double* sum, float* to);

// Passes over the hidden values of the feed-forward part, and what cuBLASLt's epilogues leave open.
// y = gelu(x), with tanh.
void gelu(cudaStream_t stream, TensorView x, TensorView y);
// dy_to_dx *= gelu'(x)
void gelu_backward(cudaStream_t stream, TensorView x, TensorView dy_to_dx);
// Each row of y += bias.
void add_bias(cudaStream_t stream, TensorView bias, TensorView y);

// Sums over the rows of a matrix in an order that depends on its shape only.
// Rows are summed in at most this many parts first.
inline constexpr int64_t kMaxParts = 64;

// How the rows of a matrix are cut into parts.
struct RowParts {
  int64_t rows_of_part = 0;
  int64_t count = 0;
};
inline RowParts row_parts(int64_t rows) {
  const int64_t each = std::max<int64_t>(64, (rows + kMaxParts - 1) / kMaxParts);
  return {each, std::max<int64_t>(1, (rows + each - 1) / each)};
}
// fp32 elements of scratch for `sums` sums of `width` columns.
inline int64_t part_sums_numel(int64_t sums, int64_t width) { return kMaxParts * sums * width; }

// to = or += the sum over `parts` of parts[part * stride + column].
void add_parts(cudaStream_t stream, const float* parts, int64_t count, int64_t stride,
               const GradientView& to);

// to = or += the sum of x's rows. `scratch` holds part_sums_numel(1, width) elements.
void column_sums(cudaStream_t stream, int64_t rows, TensorView x, float* scratch,
                 const GradientView& to);

}  // namespace zerorun::train::cuda
