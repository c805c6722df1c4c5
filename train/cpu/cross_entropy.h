#pragma once

#include <cstdint>

// Cross entropy: the mean over rows of -log softmax(logits)[target].
namespace zerorun::train {

double cross_entropy(int64_t rows, int64_t vocabulary, const int32_t* targets, const float* logits);
// Returns the cross entropy and replaces the logits by its gradient.
double cross_entropy_gradient(int64_t rows, int64_t vocabulary, const int32_t* targets,
                              float loss_scale, float* logits);

}  // namespace zerorun::train
