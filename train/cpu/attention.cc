// Softmax, of attention and of the loss. Causal multi-head attention in blocks of queries. Scores
// are stored for one block at a time only, and backward recomputes them from the saved log-sums
// (Dao et al., arXiv:2205.14135).
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/check.h"
#include "core/parallel.h"
#include "train/cpu/cpu_kernels.h"
#include "train/cpu/matrix.h"

namespace zerorun::train {

namespace {

constexpr int64_t kQueries = 64;  // queries per block

// One head of one sequence: positions of its first element in the matrices, and strides.
struct Head {
  int64_t qkv = 0;
  int64_t out = 0;
  int64_t log_sum = 0;
  int64_t width = 0;
  float scale = 1.0F;
};

Head head_of(const AttentionShape& shape, int64_t index) {
  const int64_t batch = index / shape.heads;
  const int64_t head = index % shape.heads;
  const int64_t width = shape.width / shape.heads;
  const int64_t row = batch * shape.seq_len;
  return {row * 3 * shape.width + head * width, row * shape.width + head * width,
          row * shape.heads + head, width, 1.0F / std::sqrt(static_cast<float>(width))};
}

// Queries [begin, end), which attend to keys [0, end).
struct QueryBlock {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
};

void attend(const AttentionShape& shape, const Head& head, QueryBlock block, const float* qkv,
            float* scores, float* log_sum, float* out) {
  const int64_t stride = 3 * shape.width;
  const float* const queries = qkv + head.qkv + block.begin * stride;
  const float* const keys = qkv + head.qkv + shape.width;
  const float* const values = keys + shape.width;
  const int64_t seen = block.end;
  gemm({block.count(), seen, head.width}, {queries, stride}, {keys, stride, true}, {scores, seen},
       head.scale);
  float factors[kQueries];
  for (int64_t i = 0; i < block.count(); ++i) {
    const int64_t position = block.begin + i;
    float* const row = scores + i * seen;
    const SoftmaxSums sums = exponentiate(row, position + 1);
    std::fill(row + position + 1, row + seen, 0.0F);
    factors[i] = 1.0F / sums.sum;
    log_sum[head.log_sum + position * shape.heads] = sums.log_sum;
  }
  float* const result = out + head.out + block.begin * shape.width;
  gemm({block.count(), head.width, seen}, {scores, seen}, {values, stride}, {result, shape.width});
  for (int64_t i = 0; i < block.count(); ++i) {
    scale(result + i * shape.width, head.width, factors[i]);
  }
}

struct Scratch {
  std::vector<float> p;
  std::vector<float> ds;
};

void attend_backward(const AttentionShape& shape, const Head& head, QueryBlock block,
                     const AttentionState& state, const float* dout, float* dqkv,
                     Scratch& scratch) {
  const int64_t stride = 3 * shape.width;
  const int64_t seen = block.end;
  const float* const queries = state.qkv.as<float>() + head.qkv + block.begin * stride;
  const float* const keys = state.qkv.as<float>() + head.qkv + shape.width;
  const float* const values = keys + shape.width;
  const float* const dresult = dout + head.out + block.begin * shape.width;
  float* const p = scratch.p.data();
  float* const ds = scratch.ds.data();
  gemm({block.count(), seen, head.width}, {queries, stride}, {keys, stride, true}, {p, seen},
       head.scale);
  gemm({block.count(), seen, head.width}, {dresult, shape.width}, {values, stride, true},
       {ds, seen});
  for (int64_t i = 0; i < block.count(); ++i) {
    const int64_t position = block.begin + i;
    const int64_t row = head.out + position * shape.width;
    exponentiate_from(p + i * seen, position + 1,
                      state.log_sum.as<float>()[head.log_sum + position * shape.heads]);
    softmax_backward(p + i * seen, position + 1,
                     dot(dout + row, state.out.as<float>() + row, head.width), ds + i * seen);
    std::fill(p + i * seen + position + 1, p + (i + 1) * seen, 0.0F);
    std::fill(ds + i * seen + position + 1, ds + (i + 1) * seen, 0.0F);
  }
  // Blocks are processed from the last to the first, so the first one processed overwrites the
  // gradients of all keys and values.
  const float beta = seen == shape.seq_len ? 0.0F : 1.0F;
  float* const dqueries = dqkv + head.qkv + block.begin * stride;
  float* const dkeys = dqkv + head.qkv + shape.width;
  gemm({block.count(), head.width, seen}, {ds, seen}, {keys, stride}, {dqueries, stride},
       head.scale);
  gemm({seen, head.width, block.count()}, {ds, seen, true}, {queries, stride}, {dkeys, stride},
       head.scale, beta);
  gemm({seen, head.width, block.count()}, {p, seen, true}, {dresult, shape.width},
       {dkeys + shape.width, stride}, 1.0F, beta);
}

}  // namespace

void CpuKernels::attention(const AttentionShape& shape, TensorView qkv, TensorView log_sum,
                           TensorView out) {
  const float* const in = floats(qkv);
  float* const sums = floats(log_sum);
  float* const to = floats(out);
  parallel_for(shape.batch * shape.heads, 1, [&](int64_t first, int64_t last) {
    std::vector<float> scores(static_cast<size_t>(kQueries * shape.seq_len));
    for (int64_t index = first; index < last; ++index) {
      const Head head = head_of(shape, index);
      for (int64_t begin = shape.first; begin < shape.seq_len; begin += kQueries) {
        attend(shape, head, {begin, std::min(begin + kQueries, shape.seq_len)}, in, scores.data(),
               sums, to);
      }
    }
  });
}

void CpuKernels::attention_backward(const AttentionShape& shape, const AttentionState& state,
                                    TensorView dout, TensorView dqkv) {
  const float* const from = floats(dout);
  float* const to = floats(dqkv);
  parallel_for(shape.batch * shape.heads, 1, [&](int64_t first, int64_t last) {
    const auto numel = static_cast<size_t>(kQueries * shape.seq_len);
    Scratch scratch{std::vector<float>(numel), std::vector<float>(numel)};
    for (int64_t index = first; index < last; ++index) {
      const Head head = head_of(shape, index);
      for (int64_t end = shape.seq_len; end > 0;) {
        const int64_t begin = (end - 1) / kQueries * kQueries;
        attend_backward(shape, head, {begin, end}, state, from, to, scratch);
        end = begin;
      }
    }
  });
}

void CpuKernels::cross_entropy_gradient(const LogitsShape& shape, const int32_t* targets,
                                        float loss_scale, TensorView logits) {
  ZR_CHECK(shape.stride == shape.vocabulary, "rows of {} logits lie {} apart", shape.vocabulary,
           shape.stride);
  float* const all = floats(logits);
  const float weight = loss_scale / static_cast<float>(shape.mean_over());
  std::vector<double> losses(static_cast<size_t>(shape.rows));
  parallel_for(shape.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* const scores = all + row * shape.vocabulary;
      float& target = scores[targets[row]];
      const double target_score = target;
      const SoftmaxSums sums = exponentiate(scores, shape.vocabulary);
      scale(scores, shape.vocabulary, weight / sums.sum);
      target -= weight;
      losses[static_cast<size_t>(row)] = sums.log_sum - target_score;
    }
  });
  loss_ +=
      std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(shape.mean_over());
}

}  // namespace zerorun::train
