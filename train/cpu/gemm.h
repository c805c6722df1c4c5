#pragma once

#include <cstdint>

// fp32 matrix product by oneDNN.
namespace zerorun::train {

struct GemmSize {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t inner = 0;
};

// A row-major matrix whose rows are `stride` elements apart.
struct GemmInput {
  const float* data = nullptr;
  int64_t stride = 0;
  bool transposed = false;
};

struct GemmOutput {
  float* data = nullptr;
  int64_t stride = 0;
};

// out[rows, cols] = beta * out + alpha * a[rows, inner] * b[inner, cols]. Within a parallel region
// it runs on the calling thread only.
void gemm(const GemmSize& size, GemmInput a, GemmInput b, GemmOutput out, float alpha = 1.0F,
          float beta = 0.0F);

}  // namespace zerorun::train
