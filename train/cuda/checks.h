#pragma once

#include <initializer_list>
#include <string_view>

#include "train/model/kernels.h"

// Checks before a launch of kernels; apart from them, since nvcc cannot compile the messages.
namespace zerorun::train::cuda {

// Throws InternalError when views that a kernel reads as one type differ in it. Empty ones do not
// count.
void check_dtype(DType expected, std::initializer_list<TensorView> views, std::string_view kernel);

// Heads are at most this wide.
inline constexpr int64_t kWidestHead = 256;
// Throws ConfigError when they are wider.
void check_heads(const AttentionShape& shape);

}  // namespace zerorun::train::cuda
