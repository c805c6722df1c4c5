#include "train/cuda/elements.h"

namespace zerorun::train::cuda {

namespace {

template <typename T, int N>
__global__ void add_embeddings(TokenGrid grid, const T* wte, const T* wpe, T* x) {
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (at >= grid.rows * grid.width) return;
  const int64_t row = at / grid.width;
  const int64_t column = at % grid.width;
  const int64_t position = grid.first + row % grid.seq_len;
  float token[N];
  float place[N];
  read<N>(wte + grid.tokens[row] * grid.width + column, token);
  read<N>(wpe + position * grid.width + column, place);
#pragma unroll
  for (int k = 0; k < N; ++k) token[k] += place[k];
  write<N>(token, x + at);
}

// A block for each distinct token and tile of columns.
template <typename T, typename G, int N>
__global__ void token_gradients(TokenGrid grid, TokenOrder order, const T* dx, G* wte) {
  const int64_t column = (int64_t{blockIdx.y} * kLanes + lane()) * N;
  const int32_t begin = order.begins[blockIdx.x];
  const int64_t token = grid.tokens[order.rows[begin]];
  sum_into<N>(
      begin, order.begins[blockIdx.x + 1], column, grid.width, dx,
      [&](int64_t i) { return order.rows[i] * grid.width; }, /*accumulate=*/true,
      wte + token * grid.width);
}

// A block for each position, also those beyond the sequences, and tile of columns.
template <typename T, typename G, int N>
__global__ void position_gradients(TokenGrid grid, const T* dx, bool accumulate, G* wpe) {
  const int64_t column = (int64_t{blockIdx.y} * kLanes + lane()) * N;
  const int64_t position = blockIdx.x;
  const int64_t sequences = position < grid.seq_len ? grid.rows / grid.seq_len : 0;
  sum_into<N>(
      0, sequences, column, grid.width, dx,
      [&](int64_t sequence) { return (sequence * grid.seq_len + position) * grid.width; },
      accumulate, wpe + position * grid.width);
}

}  // namespace

void embed(cudaStream_t stream, const TokenGrid& grid, TensorView wte, TensorView wpe,
           TensorView x) {
  check_dtype(x.dtype, {wte, wpe}, "embed");
  with_vectors(x.dtype, {wte, wpe, x}, grid.width, [&]<typename T, int kN>() {
    launch(add_embeddings<T, kN>, blocks_for(grid.rows * grid.width / kN), kThreads, stream, grid,
           wte.as<const T>(), wpe.as<const T>(), x.as<T>());
  });
}

void embed_backward(cudaStream_t stream, const TokenGrid& grid, const TokenOrder& order,
                    TensorView dx, const GradientView& wte, const GradientView& wpe) {
  check_dtype(wte.view.dtype, {wpe.view}, "embed_backward");
  if (!wte.accumulate) {
    zerorun::check_cuda(cudaMemsetAsync(wte.view.data, 0, wte.view.nbytes(), stream),
                        "cudaMemsetAsync of the embedding's gradient");
  }
  const int64_t positions = wpe.view.numel / grid.width;
  with_vectors(dx.dtype, {dx, wte.view, wpe.view}, grid.width, [&]<typename T, int kN>() {
    const int64_t tiles = ceil_div(grid.width, kLanes * kN);
    with_floating(wte.view.dtype, [&]<typename G>(G*) {
      launch(position_gradients<T, G, kN>, grid_of(positions, tiles), kThreads, stream, grid,
             dx.as<const T>(), wpe.accumulate, wpe.view.as<G>());
      launch(token_gradients<T, G, kN>, grid_of(order.distinct, tiles), kThreads, stream, grid,
             order, dx.as<const T>(), wte.view.as<G>());
    });
  });
}

}  // namespace zerorun::train::cuda
