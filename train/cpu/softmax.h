#pragma once

#include <cstdint>

// Softmax of a row of scores, for attention and cross entropy.
namespace zerorun::train {

struct SoftmaxSums {
  float sum = 0;      // sum of the values written
  float log_sum = 0;  // log of the sum of exp(score)
};
// row = exp(row - maximum). Dividing the row by the returned sum gives the softmax.
SoftmaxSums exponentiate(float* row, int64_t numel);

// Returns the logarithm of the sum of exp(row[i]).
float log_sum_exp(const float* row, int64_t numel);

// row = exp(row - log_sum) * factor
void exponentiate_from(float* row, int64_t numel, float log_sum, float factor);

// ds = p * (ds - mean)
void softmax_backward(const float* p, int64_t numel, float mean, float* ds);

// row *= factor
void scale(float* row, int64_t numel, float factor);

float dot(const float* a, const float* b, int64_t numel);

}  // namespace zerorun::train
