#include "train/cuda/checks.h"

#include "core/check.h"

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

}  // namespace zerorun::train::cuda
