#include "train/cpu/cross_entropy.h"

#include <numeric>
#include <vector>

#include "core/parallel.h"
#include "train/cpu/softmax.h"

namespace zerorun::train {

namespace {

// Mean of loss(row) over the rows, added in row order.
template <typename RowLoss>
double mean_over_rows(int64_t rows, const RowLoss& loss) {
  std::vector<double> losses(static_cast<size_t>(rows));
  parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) losses[static_cast<size_t>(row)] = loss(row);
  });
  return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(rows);
}

}  // namespace

double cross_entropy(int64_t rows, int64_t vocabulary, const int32_t* targets,
                     const float* logits) {
  return mean_over_rows(rows, [&](int64_t row) {
    const float* const scores = logits + row * vocabulary;
    return double{log_sum_exp(scores, vocabulary)} - scores[targets[row]];
  });
}

double cross_entropy_gradient(int64_t rows, int64_t vocabulary, const int32_t* targets,
                              float loss_scale, float* logits) {
  const float weight = loss_scale / static_cast<float>(rows);
  return mean_over_rows(rows, [&](int64_t row) {
    float* const scores = logits + row * vocabulary;
    float& target = scores[targets[row]];
    const double target_score = target;
    const SoftmaxSums sums = exponentiate(scores, vocabulary);
    scale(scores, vocabulary, weight / sums.sum);
    target -= weight;
    return sums.log_sum - target_score;
  });
}

}  // namespace zerorun::train
