#include "train/cuda/column_sums.h"
#include "train/cuda/layer_norm.h"
#include "train/cuda/sum_rows.h"

namespace zerorun::train::cuda {

namespace {

// A warp for each row.
template <typename T, int N>
__global__ void norm_rows(LayerNormShape shape, const T* x, const T* gain, const T* bias,
                          float* moments, T* y) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + warp();
  if (row >= shape.rows) return;
  const int64_t width = shape.width;
  x += row * width;
  y += row * width;
  float values[N];
  float sum = 0.0F;
  for (int64_t i = lane() * N; i < width; i += kLanes * N) {
    read<N>(x + i, values);
#pragma unroll
    for (int k = 0; k < N; ++k) sum += values[k];
  }
  const float mean = warp_sum(sum) / static_cast<float>(width);
  float squares = 0.0F;
  for (int64_t i = lane() * N; i < width; i += kLanes * N) {
    read<N>(x + i, values);
#pragma unroll
    for (int k = 0; k < N; ++k) squares += (values[k] - mean) * (values[k] - mean);
  }
  const float variance = warp_sum(squares) / static_cast<float>(width);
  const float inverse = 1.0F / sqrtf(variance + shape.epsilon);
  for (int64_t i = lane() * N; i < width; i += kLanes * N) {
    float gains[N];
    float biases[N];
    read<N>(x + i, values);
    read<N>(gain + i, gains);
    read<N>(bias + i, biases);
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] = (values[k] - mean) * inverse * gains[k] + biases[k];
    write<N>(values, y + i);
  }
  if (lane() > 0) return;
  moments[2 * row] = mean;
  moments[2 * row + 1] = inverse;
}

// A warp for each row. With n = (x - mean) / deviation and g = dy * gain:
// dx = (g - mean(g) - n * mean(g * n)) / deviation.
template <typename T, int N>
__global__ void norm_backward_rows(LayerNormShape shape, const T* x, const float* moments,
                                   const T* gain, const T* dy, bool accumulate, T* dx) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + warp();
  if (row >= shape.rows) return;
  const int64_t width = shape.width;
  const float mean = moments[2 * row];
  const float inverse = moments[2 * row + 1];
  x += row * width;
  dy += row * width;
  dx += row * width;
  float values[N];
  float gains[N];
  float slopes[N];
  float sum_g = 0.0F;
  float sum_gn = 0.0F;
  for (int64_t i = lane() * N; i < width; i += kLanes * N) {
    read<N>(x + i, values);
    read<N>(gain + i, gains);
    read<N>(dy + i, slopes);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float g = slopes[k] * gains[k];
      sum_g += g;
      sum_gn += g * ((values[k] - mean) * inverse);
    }
  }
  const float mean_g = warp_sum(sum_g) / static_cast<float>(width);
  const float mean_gn = warp_sum(sum_gn) / static_cast<float>(width);
  for (int64_t i = lane() * N; i < width; i += kLanes * N) {
    read<N>(x + i, values);
    read<N>(gain + i, gains);
    read<N>(dy + i, slopes);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float normal = (values[k] - mean) * inverse;
      values[k] = (slopes[k] * gains[k] - mean_g - normal * mean_gn) * inverse;
    }
    write_gradient<N>(values, accumulate, dx + i);
  }
}

// parts[part][0] = sums of dy * n over the part's rows: gain's gradient; parts[part][1] = sums of
// dy: bias's.
template <typename T, int N>
__global__ void norm_gradient_parts(LayerNormShape shape, int64_t rows_of_part, const T* x,
                                    const float* moments, const T* dy, float* parts) {
  const int64_t width = shape.width;
  const int64_t column = (int64_t{blockIdx.x} * kLanes + lane()) * N;
  const bool inside = column < width;
  const int64_t begin = blockIdx.y * rows_of_part;
  const int64_t end = begin + rows_of_part < shape.rows ? begin + rows_of_part : shape.rows;
  float totals[2][N] = {};
  sum_rows<2, N>(begin, end, totals, [&](int64_t row, float(&sums)[2][N]) {
    if (!inside) return;
    float values[N];
    float slopes[N];
    read<N>(x + row * width + column, values);
    read<N>(dy + row * width + column, slopes);
    const float mean = moments[2 * row];
    const float inverse = moments[2 * row + 1];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      sums[0][k] += slopes[k] * ((values[k] - mean) * inverse);
      sums[1][k] += slopes[k];
    }
  });
  if (!inside || warp() > 0) return;
  float* const part = parts + blockIdx.y * 2 * width + column;
  write<N>(totals[0], part);
  write<N>(totals[1], part + width);
}

}  // namespace

void layer_norm(cudaStream_t stream, const LayerNormShape& shape, TensorView x, TensorView gain,
                TensorView bias, TensorView moments, TensorView y) {
  check_dtype(x.dtype, {gain, bias, y}, "layer_norm");
  with_vectors(x.dtype, {x, gain, bias, y}, shape.width, [&](auto* type, auto n) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(norm_rows<T, decltype(n)::value>, grid_of(ceil_div(shape.rows, kWarps)), kThreads,
           stream, shape, x.as<const T>(), gain.as<const T>(), bias.as<const T>(),
           moments.as<float>(), y.as<T>());
  });
}

int64_t layer_norm_scratch(int64_t width) { return part_sums_numel(2, width); }

void layer_norm_backward(cudaStream_t stream, const LayerNormShape& shape,
                         const LayerNormState& state, TensorView dy,
                         const LayerNormGradients& gradients, float* scratch) {
  const auto& [dx, dgain, dbias] = gradients;
  const RowParts parts = row_parts(shape.rows);
  check_dtype(state.x.dtype, {state.gain, dy, dx.view}, "layer_norm_backward");
  with_vectors(dy.dtype, {state.x, state.gain, dy, dx.view}, shape.width, [&](auto* type, auto n) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int kN = decltype(n)::value;
    const T* const x = state.x.as<const T>();
    const float* const moments = state.moments.as<const float>();
    launch(norm_gradient_parts<T, kN>, grid_of(ceil_div(shape.width, kLanes * kN), parts.count),
           kThreads, stream, shape, parts.rows_of_part, x, moments, dy.as<const T>(), scratch);
    launch(norm_backward_rows<T, kN>, grid_of(ceil_div(shape.rows, kWarps)), kThreads, stream,
           shape, x, moments, state.gain.as<const T>(), dy.as<const T>(), dx.accumulate,
           dx.view.as<T>());
  });
  add_parts(stream, scratch, parts.count, 2 * shape.width, dgain);
  add_parts(stream, scratch + shape.width, parts.count, 2 * shape.width, dbias);
}

}  // namespace zerorun::train::cuda
