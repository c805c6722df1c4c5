#include "train/cuda/column_sums.h"
#include "train/cuda/sum_rows.h"

namespace zerorun::train::cuda {

namespace {

template <typename T, int N>
__global__ void sum_parts(int64_t rows, int64_t width, int64_t rows_of_part, const T* x,
                          float* parts) {
  const int64_t column = (int64_t{blockIdx.x} * kLanes + lane()) * N;
  const bool inside = column < width;
  const int64_t begin = blockIdx.y * rows_of_part;
  const int64_t end = begin + rows_of_part < rows ? begin + rows_of_part : rows;
  float totals[1][N] = {};
  sum_rows<1, N>(begin, end, totals, [&](int64_t row, float(&sums)[1][N]) {
    if (!inside) return;
    float values[N];
    read<N>(x + row * width + column, values);
#pragma unroll
    for (int k = 0; k < N; ++k) sums[0][k] += values[k];
  });
  if (inside && warp() == 0) write<N>(totals[0], parts + blockIdx.y * width + column);
}

template <typename G>
__global__ void add_all_parts(const float* parts, int64_t count, int64_t stride, int64_t width,
                              bool accumulate, G* to) {
  const int64_t column = int64_t{blockIdx.x} * kLanes + lane();
  const bool inside = column < width;
  float totals[1][1] = {};
  sum_rows<1, 1>(0, count, totals, [&](int64_t part, float(&sums)[1][1]) {
    if (inside) sums[0][0] += parts[part * stride + column];
  });
  if (inside && warp() == 0) write_gradient<1>(totals[0], accumulate, to + column);
}

}  // namespace

void add_parts(cudaStream_t stream, const float* parts, int64_t count, int64_t stride,
               const GradientView& to) {
  const int64_t width = to.view.numel;
  with_floating(to.view.dtype, [&](auto* type) {
    using G = std::remove_pointer_t<decltype(type)>;
    launch(add_all_parts<G>, grid_of(ceil_div(width, kLanes)), kThreads, stream, parts, count,
           stride, width, to.accumulate, to.view.as<G>());
  });
}

void column_sums(cudaStream_t stream, int64_t rows, TensorView x, float* scratch,
                 const GradientView& to) {
  const int64_t width = to.view.numel;
  const RowParts parts = row_parts(rows);
  with_vectors(x.dtype, {x}, width, [&](auto* type, auto n) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int kN = decltype(n)::value;
    launch(sum_parts<T, kN>, grid_of(ceil_div(width, kLanes * kN), parts.count), kThreads, stream,
           rows, width, parts.rows_of_part, x.as<const T>(), scratch);
  });
  add_parts(stream, scratch, parts.count, width, to);
}

}  // namespace zerorun::train::cuda
