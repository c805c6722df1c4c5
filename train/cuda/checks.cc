// Checks before kernels are launched; apart from them, since nvcc cannot compile the messages.
#include "core/check.h"
#include "core/format_bytes.h"
#include "train/cuda/cuda_kernels.h"
#include "train/cuda/kernels.h"
#include "train/model/kernels.h"

namespace zerorun::train::cuda {

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
