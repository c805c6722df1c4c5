#include "train/cuda/elements.h"

namespace zerorun::train::cuda {

namespace {

constexpr float kSqrt2OverPi = 0.7978845608028654F;
constexpr float kCubic = 0.044715F;

// Maps take an element of x and one of y, and return the new element of y.
struct Gelu {
  __device__ float operator()(float x, float /*y*/) const {
    return 0.5F * x * (1.0F + tanhf(kSqrt2OverPi * (x + kCubic * x * x * x)));
  }
};

struct TimesSlope {
  __device__ float operator()(float x, float y) const {
    const float t = tanhf(kSqrt2OverPi * (x + kCubic * x * x * x));
    const float inner = kSqrt2OverPi * (1.0F + 3.0F * kCubic * x * x);
    return y * (0.5F * (1.0F + t) + 0.5F * x * (1.0F - t * t) * inner);
  }
};

struct Sum {
  __device__ float operator()(float x, float y) const { return y + x; }
};

// y[i] = map(x[i % period], y[i])
template <typename T, int N, typename Map>
__global__ void map_rows(int64_t numel, int64_t period, const T* x, T* y, Map map) {
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (at >= numel) return;
  float xs[N];
  float ys[N];
  // A remainder of 64 bits costs more than the map; most have none at all.
  const int64_t column = at < period ? at
                         : numel <= INT32_MAX
                             ? static_cast<int32_t>(at) % static_cast<int32_t>(period)
                             : at % period;
  read<N>(x + column, xs);
  read<N>(y + at, ys);
#pragma unroll
  for (int k = 0; k < N; ++k) ys[k] = map(xs[k], ys[k]);
  write<N>(ys, y + at);
}

template <typename Map>
void map_all(cudaStream_t stream, TensorView x, TensorView y, Map map) {
  check_dtype(y.dtype, {x}, "an elementwise pass");
  with_vectors(y.dtype, {x, y}, x.numel, [&]<typename T, int kN>() {
    launch(map_rows<T, kN, Map>, blocks_for(y.numel / kN), kThreads, stream, y.numel, x.numel,
           x.as<const T>(), y.as<T>(), map);
  });
}

// A block for each tile of columns and part of the rows.
template <typename T, int N>
__global__ void sum_parts(int64_t rows, int64_t width, int64_t rows_of_part, const T* x,
                          float* parts) {
  const int64_t column = (int64_t{blockIdx.x} * kLanes + lane()) * N;
  const int64_t begin = blockIdx.y * rows_of_part;
  const int64_t end = begin + rows_of_part < rows ? begin + rows_of_part : rows;
  sum_into<N>(
      begin, end, column, width, x, [&](int64_t row) { return row * width; }, /*accumulate=*/false,
      parts + blockIdx.y * width);
}

template <typename G>
__global__ void add_all_parts(const float* parts, int64_t count, int64_t stride, int64_t width,
                              bool accumulate, G* to) {
  sum_into<1>(
      0, count, int64_t{blockIdx.x} * kLanes + lane(), width, parts,
      [&](int64_t part) { return part * stride; }, accumulate, to);
}

}  // namespace

void gelu(cudaStream_t stream, TensorView x, TensorView y) { map_all(stream, x, y, Gelu()); }

void gelu_backward(cudaStream_t stream, TensorView x, TensorView dy_to_dx) {
  map_all(stream, x, dy_to_dx, TimesSlope());
}

void add_bias(cudaStream_t stream, TensorView bias, TensorView y) {
  map_all(stream, bias, y, Sum());
}

void add_parts(cudaStream_t stream, const float* parts, int64_t count, int64_t stride,
               const GradientView& to) {
  const int64_t width = to.view.numel;
  with_floating(to.view.dtype, [&]<typename G>(G*) {
    launch(add_all_parts<G>, grid_of(ceil_div(width, kLanes)), kThreads, stream, parts, count,
           stride, width, to.accumulate, to.view.as<G>());
  });
}

void column_sums(cudaStream_t stream, int64_t rows, TensorView x, float* scratch,
                 const GradientView& to) {
  const int64_t width = to.view.numel;
  const RowParts parts = row_parts(rows);
  with_vectors(x.dtype, {x}, width, [&]<typename T, int kN>() {
    launch(sum_parts<T, kN>, grid_of(ceil_div(width, kLanes * kN), parts.count), kThreads, stream,
           rows, width, parts.rows_of_part, x.as<const T>(), scratch);
  });
  add_parts(stream, scratch, parts.count, width, to);
}

}  // namespace zerorun::train::cuda
