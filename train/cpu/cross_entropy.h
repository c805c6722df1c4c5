#pragma once

#include <cstdint>

// Mean over rows of -log softmax(logits)[target].
namespace zerorun::train {

double cross_entropy(int64_t rows, int64_t vocabulary, const int32_t* targets, const float* logits);
// Also replaces the logits by the mean's gradient.
double cross_entropy_gradient(int64_t rows, int64_t vocabulary, const int32_t* targets,
                              float loss_scale, float* logits);

}  // namespace zerorun::train
