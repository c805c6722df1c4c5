#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "zerorun/engine.h"

// Sums over the rows of a matrix in an order that depends on its shape only.
namespace zerorun::train::cuda {

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
