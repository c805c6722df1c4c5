#include <algorithm>

#include "train/cuda/elements.h"

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

// How the threads of a block share its rows: `teams` rows at a time, each by as many warps as hold
// a row with N columns a thread.
struct RowTeams {
  int threads = 0;  // of a team
  int teams = 0;
};
constexpr int kMaxThreads = 768;  // of a block: each has up to 80 registers
constexpr int kMaxTeams = 8;
constexpr int kMaxTeamWidth = kMaxThreads * 4;  // of rows that several teams share
constexpr int64_t kMaxBlocks = 128;             // blocks: about one for each multiprocessor

RowTeams row_teams(int64_t width, int columns) {
  const int64_t threads = ceil_div(ceil_div(width, columns), kLanes) * kLanes;
  if (threads > kMaxThreads) return {};
  const int teams = std::min(kMaxTeams, kMaxThreads / static_cast<int>(threads));
  return {static_cast<int>(threads), width > kMaxTeamWidth ? 1 : teams};
}

// Rows of a block: the same number for each of its teams.
int64_t rows_of_block(int64_t rows, int teams) {
  return ceil_div(ceil_div(rows, kMaxBlocks), teams) * teams;
}

// The sums of two values over a team's threads, in every one of them. All threads of the block call
// it; `turn` alternates, so that nobody writes what others still read.
__device__ inline void team_sums(int threads, int turn, float& a, float& b) {
  __shared__ float parts[2][2][kMaxThreads / kLanes];
  a = warp_sum(a);
  b = warp_sum(b);
  if (lane() == 0) {
    parts[turn][0][warp()] = a;
    parts[turn][1][warp()] = b;
  }
  __syncthreads();
  const int warps = threads / kLanes;
  const int first = warp() / warps * warps;
  a = b = 0.0F;
  for (int i = first; i < first + warps; ++i) {
    a += parts[turn][0][i];
    b += parts[turn][1][i];
  }
}

// Adds the sums of all teams to the first one's, in their order.
template <int N>
__device__ inline void add_teams(const RowTeams& split, int team, int64_t column, bool has_columns,
                                 float (&totals)[2][N]) {
  __shared__ float sums[2][kMaxTeamWidth];
  for (int next = split.teams - 1; next >= 0; --next) {
    if (team == next && has_columns) {
#pragma unroll
      for (int k = 0; k < N; ++k) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (next < split.teams - 1) totals[i][k] += sums[i][column + k];
          sums[i][column + k] = totals[i][k];
        }
      }
    }
    __syncthreads();
  }
}

// All gradients in one pass: each row is read once and lies in its threads' registers. With
// n = (x - mean) / deviation and g = dy * gain: dx = (g - mean(g) - n * mean(g * n)) / deviation.
// parts[block][0] = sums of dy * n over the block's rows: gain's gradient; parts[block][1] = sums
// of dy: bias's.
template <typename T, int N>
__global__ void __launch_bounds__(kMaxThreads)
    norm_backward(LayerNormShape shape, RowTeams split, int64_t block_rows, const T* x,
                  const float* moments, const T* gain, const T* dy, bool accumulate, T* dx,
                  float* parts) {
  const int64_t width = shape.width;
  const int team = static_cast<int>(threadIdx.x) / split.threads;
  const int64_t column = int64_t{static_cast<int>(threadIdx.x) % split.threads} * N;
  const bool has_columns = column < width;
  float gains[N] = {};
  if (has_columns) read<N>(gain + column, gains);
  float totals[2][N] = {};
  int turn = 0;
  // The same number of rounds for all threads of the block, which meet.
  for (int64_t round = 0; round < block_rows; round += split.teams, turn ^= 1) {
    const int64_t row = blockIdx.x * block_rows + round + team;
    const bool inside = has_columns && row < shape.rows;
    float normals[N] = {};
    float slopes[N] = {};
    const float inverse = inside ? moments[2 * row + 1] : 0.0F;
    if (inside) {
      const float mean = moments[2 * row];
      read<N>(x + row * width + column, normals);
      read<N>(dy + row * width + column, slopes);
#pragma unroll
      for (int k = 0; k < N; ++k) normals[k] = (normals[k] - mean) * inverse;
    }
    float sum_g = 0.0F;
    float sum_gn = 0.0F;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      totals[0][k] += slopes[k] * normals[k];
      totals[1][k] += slopes[k];
      slopes[k] *= gains[k];
      sum_g += slopes[k];
      sum_gn += slopes[k] * normals[k];
    }
    team_sums(split.threads, turn, sum_g, sum_gn);
    if (!inside) continue;
    const float mean_g = sum_g / static_cast<float>(width);
    const float mean_gn = sum_gn / static_cast<float>(width);
#pragma unroll
    for (int k = 0; k < N; ++k) slopes[k] = (slopes[k] - mean_g - normals[k] * mean_gn) * inverse;
    write_gradient<N>(slopes, accumulate, dx + row * width + column);
  }
  // The teams' sums, one team after the other.
  float* const part = parts + blockIdx.x * 2 * width + column;
  if (split.teams > 1) add_teams<N>(split, team, column, has_columns, totals);
  if (!has_columns || team > 0) return;
  write<N>(totals[0], part);
  write<N>(totals[1], part + width);
}

// The same in two passes for rows that do not fit into a block's registers. A warp for each row:
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

// Writes dx and the parts of the other two; returns how many there are.
template <typename T, int N>
int64_t launch_backward(cudaStream_t stream, const LayerNormShape& shape,
                        const LayerNormState& state, const T* dy, const GradientView& dx,
                        float* scratch) {
  const T* const x = state.x.as<const T>();
  const T* const gain = state.gain.as<const T>();
  const float* const moments = state.moments.as<const float>();
  T* const to = dx.view.as<T>();
  const RowTeams split = row_teams(shape.width, N);
  if (split.teams > 0) {
    const int64_t block_rows = rows_of_block(shape.rows, split.teams);
    const int64_t blocks = ceil_div(shape.rows, block_rows);
    launch(norm_backward<T, N>, grid_of(blocks), static_cast<unsigned>(split.threads * split.teams),
           stream, shape, split, block_rows, x, moments, gain, dy, dx.accumulate, to, scratch);
    return blocks;
  }
  const RowParts parts = row_parts(shape.rows);
  launch(norm_gradient_parts<T, N>, grid_of(ceil_div(shape.width, kLanes * N), parts.count),
         kThreads, stream, shape, parts.rows_of_part, x, moments, dy, scratch);
  launch(norm_backward_rows<T, N>, grid_of(ceil_div(shape.rows, kWarps)), kThreads, stream, shape,
         x, moments, gain, dy, dx.accumulate, to);
  return parts.count;
}

}  // namespace

void layer_norm(cudaStream_t stream, const LayerNormShape& shape, TensorView x, TensorView gain,
                TensorView bias, TensorView moments, TensorView y) {
  check_dtype(x.dtype, {gain, bias, y}, "layer_norm");
  with_vectors(x.dtype, {x, gain, bias, y}, shape.width, [&]<typename T, int kN>() {
    launch(norm_rows<T, kN>, grid_of(ceil_div(shape.rows, kWarps)), kThreads, stream, shape,
           x.as<const T>(), gain.as<const T>(), bias.as<const T>(), moments.as<float>(), y.as<T>());
  });
}

int64_t layer_norm_scratch(int64_t width) {
  return std::max(part_sums_numel(2, width), kMaxBlocks * 2 * width);
}

void layer_norm_backward(cudaStream_t stream, const LayerNormShape& shape,
                         const LayerNormState& state, TensorView dy,
                         const LayerNormGradients& gradients, float* scratch) {
  const auto& [dx, dgain, dbias] = gradients;
  check_dtype(state.x.dtype, {state.gain, dy, dx.view}, "layer_norm_backward");
  int64_t parts = 0;
  with_vectors(
      dy.dtype, {state.x, state.gain, dy, dx.view}, shape.width, [&]<typename T, int kN>() {
        parts = launch_backward<T, kN>(stream, shape, state, dy.as<const T>(), dx, scratch);
      });
  add_parts(stream, scratch, parts, 2 * shape.width, dgain);
  add_parts(stream, scratch + shape.width, parts, 2 * shape.width, dbias);
}

}  // namespace zerorun::train::cuda
