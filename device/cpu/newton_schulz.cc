#include "device/newton_schulz.h"

#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/check.h"
#include "device/cpu/kernels.h"
#include "zerorun/exact_sum.h"

namespace zerorun::kernels {

namespace {

// If `inner` exceeds 2048, oneDNN 2.6 moves the stack pointer to the start of a heap block
// (jit_avx_gemm_f32.cpp), so that a signal handler on that thread, such as Python's for Ctrl-C,
// would overwrite the heap. Therefore products are summed in parts with at most this inner
// dimension.
constexpr int64_t kInnerPart = 2048;

// out = alpha * a * b + beta * out, all row-major; b transposed or not.
void multiply(int64_t rows, int64_t cols, int64_t inner, const float* a, const float* b,
              bool transpose_b, float* out, float alpha, float beta) {
  const int64_t b_stride = transpose_b ? inner : cols;
  for (int64_t begin = 0; begin < inner; begin += kInnerPart) {
    const int64_t part = std::min(kInnerPart, inner - begin);
    const float* b_part = transpose_b ? b + begin : b + begin * cols;
    const dnnl_status_t status =
        dnnl_sgemm('N', transpose_b ? 'T' : 'N', rows, cols, part, alpha, a + begin, inner, b_part,
                   b_stride, begin == 0 ? beta : 1.0F, out, cols);
    ZR_CHECK(status == dnnl_success, "oneDNN refused a product of {} x {} x {}: {}", rows, cols,
             part, static_cast<int>(status));
  }
}

void transpose(const float* from, int64_t rows, int64_t cols, float* to) {
  constexpr int64_t kTile = 32;
  for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
    for (int64_t c0 = 0; c0 < cols; c0 += kTile) {
      for (int64_t r = r0; r < std::min(rows, r0 + kTile); ++r) {
        for (int64_t c = c0; c < std::min(cols, c0 + kTile); ++c)
          to[c * rows + r] = from[r * cols + c];
      }
    }
  }
}

}  // namespace

// Computes in fp32, so that the result does not depend on 16-bit products of the instruction set.
// Transposes so that rows are the shorter side, which makes A smaller.
void orthogonalize(TensorView matrix, int64_t rows, int64_t cols, const Orthogonalization& how,
                   TensorView work) {
  if (matrix.empty()) return;
  const bool tall = rows > cols;
  const int64_t side = tall ? cols : rows;
  const int64_t length = tall ? rows : cols;
  ExactSum squares;
  const SquaresSegment all{.numel = matrix.numel};
  sum_of_squares(matrix, {&all, 1}, view_of(std::span<int64_t>(squares.words)));
  scale(matrix, static_cast<float>(1.0 / (std::sqrt(squares.value()) + kNewtonSchulzEps)));

  float* x = matrix.as<float>();
  float* next = work.as<float>();
  float* gram = next + rows * cols;
  float* polynomial = gram + side * side;
  if (tall) {
    transpose(x, rows, cols, next);
    std::swap(x, next);
  }
  for (int step = 0; step < how.steps; ++step) {
    const NewtonSchulzStep k = newton_schulz_step(how, step);
    multiply(side, side, length, x, x, true, gram, 1.0F, 0.0F);
    std::copy_n(gram, side * side, polynomial);
    multiply(side, side, side, gram, gram, false, polynomial, k.c, k.b);
    for (int64_t i = 0; i < side; ++i) polynomial[i * side + i] += k.a;
    multiply(side, length, side, polynomial, x, false, next, 1.0F, 0.0F);
    std::swap(x, next);
  }
  float* result = matrix.as<float>();
  if (tall) {
    // `x` may be the memory of the matrix.
    if (x == result) {
      std::copy_n(x, side * length, next);
      x = next;
    }
    transpose(x, side, length, result);
  } else if (x != result) {
    std::copy_n(x, side * length, result);
  }
}

}  // namespace zerorun::kernels
