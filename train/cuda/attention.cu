#include "train/cuda/elements.h"

namespace zerorun::train::cuda {

namespace {

// kTile rows of one head, widened in shared memory. Heads narrower than kWidth, and rows beyond the
// sequence, are filled with zeros. A row has one element more than it needs, so that a column's
// elements lie in different banks.
template <int kTile, int kWidth>
using Tile = float[kTile][kWidth + 1];
template <int kTile>
using Scores = float[kTile][kTile + 1];

// The place of one head of one sequence in the matrices.
struct HeadView {
  int64_t qkv = 0;      // first element of its first query
  int64_t out = 0;      // likewise in `out`
  int64_t log_sum = 0;  // of its first position
  int64_t width = 0;
  float scale = 1.0F;  // of scores
};

// `index` counts heads, then sequences.
__device__ inline HeadView head_view(const AttentionShape& shape, int64_t index) {
  const int64_t batch = index / shape.heads;
  const int64_t head = index % shape.heads;
  const int64_t width = shape.width / shape.heads;
  const int64_t row = batch * shape.seq_len;
  return {row * 3 * shape.width + head * width, row * shape.width + head * width,
          index * shape.seq_len, width, 1.0F / sqrtf(static_cast<float>(width))};
}

// Rows [first, first + kTile) below `end` of a matrix whose rows lie `stride` apart, times
// `factor`.
template <int kTile, int kWidth, typename T>
__device__ inline void load_tile(const T* from, int64_t stride, int64_t first, int64_t end,
                                 int64_t width, float factor, Tile<kTile, kWidth>& tile) {
  for (int i = threadIdx.x; i < kTile * kWidth; i += kThreads) {
    const int row = i / kWidth;
    const int column = i % kWidth;
    const bool inside = first + row < end && column < width;
    tile[row][column] = inside ? widen(from[(first + row) * stride + column]) * factor : 0.0F;
  }
}

template <int kWidth>
__device__ inline float dot(const float* a, const float* b) {
  float sum = 0.0F;
#pragma unroll 16
  for (int k = 0; k < kWidth; ++k) sum += a[k] * b[k];
  return sum;
}

// A [kTile, kWidth] matrix in the registers of a block: thread t holds elements t, t + kThreads,
// ...
template <int kTile, int kWidth>
struct Accumulator {
  static constexpr int kOwn = kTile * kWidth / kThreads;
  static_assert(kTile * kWidth % kThreads == 0);

  float values[kOwn] = {};

  // each(row, column, value&)
  template <typename Each>
  __device__ void for_each(const Each& each) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int at = i * kThreads + static_cast<int>(threadIdx.x);
      each(at / kWidth, at % kWidth, values[i]);
    }
  }

  // Writes the rows below `end` to a matrix, times `factor`.
  template <typename T>
  __device__ void store(T* to, int64_t stride, int64_t first, int64_t end, int64_t width,
                        float factor) {
    for_each([&](int row, int column, float& value) {
      if (first + row >= end || column >= width) return;
      narrow(value * factor, &to[(first + row) * stride + column]);
    });
  }
};

// Host code: calls body<T, head width, rows of a tile>() for heads of `width`. Tiles are as high as
// shared memory (48 KiB) allows.
template <typename Body>
void with_head(DType dtype, int64_t width, const Body& body) {
  with_floating(dtype, [&]<typename T>(T*) {
    if (width <= 64) {
      body.template operator()<T, 64, 32>();
    } else if (width <= 128) {
      body.template operator()<T, 128, 16>();
    } else {
      body.template operator()<T, 256, 8>();
    }
  });
}

// One row's running maximum and sum: replaces its scores by exp(score - maximum) and returns the
// factor that earlier sums have to be multiplied with.
template <int kTile>
__device__ inline float continue_row(float* scores, float& largest, float& sum) {
  float maximum = largest;
  for (int j = 0; j < kTile; ++j) maximum = fmaxf(maximum, scores[j]);
  const float factor = expf(largest - maximum);
  float added = 0.0F;
  for (int j = 0; j < kTile; ++j) {
    scores[j] = expf(scores[j] - maximum);
    added += scores[j];
  }
  largest = maximum;
  sum = sum * factor + added;
  return factor;
}

// A block for each tile of queries of each head.
template <typename T, int kWidth, int kTile>
__global__ void attend(AttentionShape shape, int64_t tiles, const T* qkv, float* log_sum, T* out) {
  __shared__ Tile<kTile, kWidth> queries;
  __shared__ Tile<kTile, kWidth> keys;
  __shared__ Tile<kTile, kWidth> values;
  __shared__ Scores<kTile> scores;
  __shared__ float largest[kTile];
  __shared__ float sum[kTile];
  __shared__ float factor[kTile];
  const HeadView head = head_view(shape, blockIdx.x / tiles);
  const int64_t begin = shape.first + static_cast<int64_t>(blockIdx.x) % tiles * kTile;
  const int64_t end = begin + kTile < shape.seq_len ? begin + kTile : shape.seq_len;
  const int64_t stride = 3 * shape.width;
  const T* const query = qkv + head.qkv;
  const int thread = static_cast<int>(threadIdx.x);
  load_tile<kTile, kWidth>(query, stride, begin, end, head.width, head.scale, queries);
  if (thread < kTile) {
    largest[thread] = -HUGE_VALF;
    sum[thread] = 0.0F;
  }
  Accumulator<kTile, kWidth> result;
  for (int64_t first = 0; first < end; first += kTile) {
    __syncthreads();  // the tiles of the last round have been read
    load_tile<kTile, kWidth>(query + shape.width, stride, first, end, head.width, 1.0F, keys);
    load_tile<kTile, kWidth>(query + 2 * shape.width, stride, first, end, head.width, 1.0F, values);
    __syncthreads();
    for (int at = thread; at < kTile * kTile; at += kThreads) {
      const int i = at / kTile;
      const int j = at % kTile;
      const bool seen = first + j <= begin + i;
      scores[i][j] = seen ? dot<kWidth>(queries[i], keys[j]) : -HUGE_VALF;
    }
    __syncthreads();
    if (thread < kTile) {
      factor[thread] = continue_row<kTile>(scores[thread], largest[thread], sum[thread]);
    }
    __syncthreads();
    result.for_each([&](int row, int column, float& value) {
      value *= factor[row];
#pragma unroll 8
      for (int j = 0; j < kTile; ++j) value += scores[row][j] * values[j][column];
    });
  }
  result.for_each([&](int row, int /*column*/, float& value) { value /= sum[row]; });
  result.store(out + head.out, shape.width, begin, end, head.width, 1.0F);
  if (thread < kTile && begin + thread < end) {
    log_sum[head.log_sum + begin + thread] = largest[thread] + logf(sum[thread]);
  }
}

// means[head, position] = sum of out * dout, which softmax's gradient subtracts. A warp for each.
template <typename T>
__global__ void weighted_means(AttentionShape shape, const T* out, const T* dout, float* means) {
  const int64_t index = int64_t{blockIdx.x} * kWarps + warp();  // position, then head
  if (index >= shape.batch * shape.heads * shape.seq_len) return;
  const HeadView head = head_view(shape, index / shape.seq_len);
  const int64_t row = head.out + index % shape.seq_len * shape.width;
  float sum = 0.0F;
  for (int64_t i = lane(); i < head.width; i += kLanes) {
    sum += widen(out[row + i]) * widen(dout[row + i]);
  }
  sum = warp_sum(sum);
  if (lane() == 0) means[index] = sum;
}

struct BackwardSums {
  const float* log_sum;
  const float* means;
};

// One element of softmax and of its gradient, for a pair of query and key (from the sequence's
// start) that lie in row i and j of their tiles.
struct Pair {
  float p;
  float ds;
};
template <int kTile, int kWidth>
__device__ inline Pair pair_of(const AttentionShape& shape, const HeadView& head,
                               const BackwardSums& sums, int64_t query, int64_t key,
                               const float* query_row, const float* key_row, const float* value_row,
                               const float* dout_row) {
  if (key > query || query >= shape.seq_len) return {0.0F, 0.0F};
  const int64_t at = head.log_sum + query;
  const float p = expf(dot<kWidth>(query_row, key_row) - sums.log_sum[at]);
  return {p, p * (dot<kWidth>(dout_row, value_row) - sums.means[at])};
}

// A block for each tile of queries.
template <typename T, int kWidth, int kTile>
__global__ void query_gradients(AttentionShape shape, int64_t tiles, const T* qkv,
                                BackwardSums sums, const T* dout, T* dqkv) {
  __shared__ Tile<kTile, kWidth> queries;
  __shared__ Tile<kTile, kWidth> douts;
  __shared__ Tile<kTile, kWidth> keys;
  __shared__ Tile<kTile, kWidth> values;
  __shared__ Scores<kTile> ds;
  const HeadView head = head_view(shape, blockIdx.x / tiles);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) % tiles * kTile;
  const int64_t end = begin + kTile < shape.seq_len ? begin + kTile : shape.seq_len;
  const int64_t stride = 3 * shape.width;
  const T* const query = qkv + head.qkv;
  load_tile<kTile, kWidth>(query, stride, begin, end, head.width, head.scale, queries);
  load_tile<kTile, kWidth>(dout + head.out, shape.width, begin, end, head.width, 1.0F, douts);
  Accumulator<kTile, kWidth> result;
  for (int64_t first = 0; first < end; first += kTile) {
    __syncthreads();
    load_tile<kTile, kWidth>(query + shape.width, stride, first, end, head.width, 1.0F, keys);
    load_tile<kTile, kWidth>(query + 2 * shape.width, stride, first, end, head.width, 1.0F, values);
    __syncthreads();
    for (int at = threadIdx.x; at < kTile * kTile; at += kThreads) {
      const int i = at / kTile;
      const int j = at % kTile;
      ds[i][j] = pair_of<kTile, kWidth>(shape, head, sums, begin + i, first + j, queries[i],
                                        keys[j], values[j], douts[i])
                     .ds;
    }
    __syncthreads();
    result.for_each([&](int row, int column, float& value) {
#pragma unroll 8
      for (int j = 0; j < kTile; ++j) value += ds[row][j] * keys[j][column];
    });
  }
  result.store(dqkv + head.qkv, stride, begin, end, head.width, head.scale);
}

// A block for each tile of keys: the queries that see it, from its own position on.
template <typename T, int kWidth, int kTile>
__global__ void key_value_gradients(AttentionShape shape, int64_t tiles, const T* qkv,
                                    BackwardSums sums, const T* dout, T* dqkv) {
  __shared__ Tile<kTile, kWidth> queries;
  __shared__ Tile<kTile, kWidth> douts;
  __shared__ Tile<kTile, kWidth> keys;
  __shared__ Tile<kTile, kWidth> values;
  __shared__ Scores<kTile> p;
  __shared__ Scores<kTile> ds;
  const HeadView head = head_view(shape, blockIdx.x / tiles);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) % tiles * kTile;
  const int64_t end = begin + kTile < shape.seq_len ? begin + kTile : shape.seq_len;
  const int64_t stride = 3 * shape.width;
  const T* const query = qkv + head.qkv;
  load_tile<kTile, kWidth>(query + shape.width, stride, begin, end, head.width, 1.0F, keys);
  load_tile<kTile, kWidth>(query + 2 * shape.width, stride, begin, end, head.width, 1.0F, values);
  Accumulator<kTile, kWidth> dkeys;
  Accumulator<kTile, kWidth> dvalues;
  for (int64_t first = begin; first < shape.seq_len; first += kTile) {
    __syncthreads();
    load_tile<kTile, kWidth>(query, stride, first, shape.seq_len, head.width, head.scale, queries);
    load_tile<kTile, kWidth>(dout + head.out, shape.width, first, shape.seq_len, head.width, 1.0F,
                             douts);
    __syncthreads();
    for (int at = threadIdx.x; at < kTile * kTile; at += kThreads) {
      const int i = at / kTile;
      const int j = at % kTile;
      const Pair pair = pair_of<kTile, kWidth>(shape, head, sums, first + i, begin + j, queries[i],
                                               keys[j], values[j], douts[i]);
      p[i][j] = pair.p;
      ds[i][j] = pair.ds;
    }
    __syncthreads();
    dvalues.for_each([&](int row, int column, float& value) {
#pragma unroll 8
      for (int i = 0; i < kTile; ++i) value += p[i][row] * douts[i][column];
    });
    dkeys.for_each([&](int row, int column, float& value) {
#pragma unroll 8
      for (int i = 0; i < kTile; ++i) value += ds[i][row] * queries[i][column];
    });
  }
  // The queries were scaled already.
  dkeys.store(dqkv + head.qkv + shape.width, stride, begin, end, head.width, 1.0F);
  dvalues.store(dqkv + head.qkv + 2 * shape.width, stride, begin, end, head.width, 1.0F);
}

}  // namespace

void attention(cudaStream_t stream, const AttentionShape& shape, TensorView qkv, TensorView log_sum,
               TensorView out) {
  check_heads(shape);
  with_head(qkv.dtype, shape.width / shape.heads, [&]<typename T, int kWidth, int kTile>() {
    const int64_t tiles = ceil_div(shape.seq_len - shape.first, kTile);
    launch(attend<T, kWidth, kTile>, grid_of(tiles * shape.batch * shape.heads), kThreads, stream,
           shape, tiles, qkv.as<const T>(), log_sum.as<float>(), out.as<T>());
  });
}

void attention_backward(cudaStream_t stream, const AttentionShape& shape,
                        const AttentionState& state, TensorView dout, TensorView dqkv,
                        float* scratch) {
  check_heads(shape);
  const int64_t heads = shape.batch * shape.heads;
  const BackwardSums sums{state.log_sum.as<const float>(), scratch};
  with_head(dout.dtype, shape.width / shape.heads, [&]<typename T, int kWidth, int kTile>() {
    const T* const qkv = state.qkv.as<const T>();
    const int64_t tiles = ceil_div(shape.seq_len, kTile);
    const dim3 grid = grid_of(tiles * heads);
    launch(weighted_means<T>, grid_of(ceil_div(heads * shape.seq_len, kWarps)), kThreads, stream,
           shape, state.out.as<const T>(), dout.as<const T>(), scratch);
    launch(query_gradients<T, kWidth, kTile>, grid, kThreads, stream, shape, tiles, qkv, sums,
           dout.as<const T>(), dqkv.as<T>());
    launch(key_value_gradients<T, kWidth, kTile>, grid, kThreads, stream, shape, tiles, qkv, sums,
           dout.as<const T>(), dqkv.as<T>());
  });
}

}  // namespace zerorun::train::cuda
