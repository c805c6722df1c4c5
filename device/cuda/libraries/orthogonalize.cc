#include "device/cuda/libraries/orthogonalize.h"

#include <algorithm>
#include <utility>

#include "device/cuda/kernels/kernels.h"
#include "device/cuda/runtime/cuda_error.h"
#include "device/newton_schulz.h"

namespace zerorun::cuda {

namespace {

void copy(cudaStream_t stream, const float* from, float* to, int64_t count) {
  check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(count) * sizeof(float),
                             cudaMemcpyDeviceToDevice, stream),
             "cudaMemcpyAsync on the device");
}

}  // namespace

void orthogonalize(Cublas& cublas, cudaStream_t stream, const Matrix& matrix,
                   const Orthogonalization& how, const OrthogonalizeMemory& memory) {
  const auto [elements, rows, cols] = matrix;
  fill(stream, memory.sum, 0.0F);
  const SquaresSegment all{.numel = elements.numel};
  sum_of_squares(stream, elements, {&all, 1}, memory.sum);
  normalize(stream, elements, memory.sum);

  // The square A belongs to the shorter side: XX' from the left, or X'X from the right.
  const bool tall = rows > cols;
  const int64_t side = std::min(rows, cols);
  float* x = elements.as<float>();
  float* next = memory.work.as<float>();
  float* const gram = next + rows * cols;
  float* const polynomial = gram + side * side;
  for (int step = 0; step < how.steps; ++step) {
    const NewtonSchulzStep k = newton_schulz_step(how, step);
    cublas.multiply(stream, {.rows = side,
                             .cols = side,
                             .inner = std::max(rows, cols),
                             .transpose_a = tall,
                             .transpose_b = !tall,
                             .a = x,
                             .b = x,
                             .out = gram});
    copy(stream, gram, polynomial, side * side);
    cublas.multiply(stream, {.rows = side,
                             .cols = side,
                             .inner = side,
                             .a = gram,
                             .b = gram,
                             .out = polynomial,
                             .alpha = k.c,
                             .beta = k.b});
    copy(stream, x, next, rows * cols);
    cublas.multiply(stream, {.rows = rows,
                             .cols = cols,
                             .inner = side,
                             .a = tall ? x : polynomial,
                             .b = tall ? polynomial : x,
                             .out = next,
                             .beta = k.a});
    std::swap(x, next);
  }
  if (x != elements.as<float>()) copy(stream, x, elements.as<float>(), rows * cols);
}

}  // namespace zerorun::cuda
