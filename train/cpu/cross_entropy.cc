#include <numeric>
#include <vector>

#include "core/check.h"
#include "core/parallel.h"
#include "train/cpu/cpu_kernels.h"
#include "train/cpu/matrix.h"

namespace zerorun::train {

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
