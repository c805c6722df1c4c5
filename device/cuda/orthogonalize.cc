#include "device/cuda/orthogonalize.h"

#include <algorithm>
#include <utility>

#include "device/cuda/cuda_error.h"
#include "device/cuda/kernels.h"
#include "device/newton_schulz.h"
#include "zerorun/exact_sum.h"

namespace zerorun::cuda {

namespace {

void copy(cudaStream_t stream, const float* from, float* to, int64_t count) {
  check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(count) * sizeof(float),
                             cudaMemcpyDeviceToDevice, stream),
             "cudaMemcpyAsync on the device");
}

}  // namespace

void orthogonalize(CudaPool& pool, Cublas& cublas, const CudaStream& stream, TensorView matrix,
                   int64_t rows, int64_t cols, int steps, TensorView work) {
  if (matrix.empty()) return;
  const cudaStream_t handle = stream.handle();
  const Buffer words = pool.scratch(stream, ExactSum::kWords * sizeof(int64_t));
  const TensorView sum = view_of(words, DType::int64, ExactSum::kWords);
  fill(handle, sum, 0.0F);
  sum_of_squares(handle, matrix, sum);
  normalize(handle, matrix, sum);

  // The square A belongs to the shorter side: XX' from the left, or X'X from the right.
  const bool tall = rows > cols;
  const int64_t side = std::min(rows, cols);
  float* x = matrix.as<float>();
  float* next = work.as<float>();
  float* const gram = next + rows * cols;
  float* const polynomial = gram + side * side;
  for (int step = 0; step < steps; ++step) {
    cublas.multiply(handle, {.rows = side,
                             .cols = side,
                             .inner = std::max(rows, cols),
                             .transpose_a = tall,
                             .transpose_b = !tall,
                             .a = x,
                             .b = x,
                             .out = gram});
    copy(handle, gram, polynomial, side * side);
    cublas.multiply(handle, {.rows = side,
                             .cols = side,
                             .inner = side,
                             .a = gram,
                             .b = gram,
                             .out = polynomial,
                             .alpha = NewtonSchulz::kC,
                             .beta = NewtonSchulz::kB});
    copy(handle, x, next, rows * cols);
    cublas.multiply(handle, {.rows = rows,
                             .cols = cols,
                             .inner = side,
                             .a = tall ? x : polynomial,
                             .b = tall ? polynomial : x,
                             .out = next,
                             .beta = NewtonSchulz::kA});
    std::swap(x, next);
  }
  if (x != matrix.as<float>()) copy(handle, x, matrix.as<float>(), rows * cols);
}

}  // namespace zerorun::cuda
