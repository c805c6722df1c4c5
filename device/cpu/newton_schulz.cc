#include "device/newton_schulz.h"

#include <oneapi/dnnl/dnnl.h>

#include <cmath>
#include <utility>

#include "core/check.h"
#include "core/parallel.h"
#include "device/cpu/kernels.h"
#include "zerorun/exact_sum.h"

namespace zerorun::kernels {

namespace {

// If `inner` exceeds 2048, oneDNN 2.6 moves the stack pointer to the start of a heap block
// (jit_avx_gemm_f32.cpp), so that a signal handler on that thread, such as Python's for Ctrl-C,
// would overwrite the heap. Therefore products are summed in parts with at most this inner
// dimension.
constexpr int64_t kInnerPart = 2048;

// The rows of a product that one thread computes, by itself: oneDNN divides sums among threads, so
// that their number would show in the last bits.
constexpr int64_t kPanel = 128;

// The steps that work on A alone before X is computed, which is the dearest product if X is twice
// as long as high: the next A is PAP with the step's polynomial P of A, and the P of the steps are
// multiplied (Gram Newton-Schulz). Small singular values lose accuracy then, since A has their
// squares: in fp32, three steps differed from the iteration in double by up to 6e-6 where single
// steps did by 3e-6, and all five by 2e-4.
constexpr int kSquareSteps = 3;

struct Product {
  int64_t inner;
  const float* a;
  const float* b;
  bool transpose_b = false;
  float alpha = 1.0F;
  float beta = 0.0F;
};

// The first `cols` columns of out = alpha * a * b + beta * out, all row-major; b transposed or not.
// `width`: the columns of out, and of b if it is not transposed.
void multiply_panel(int64_t rows, int64_t cols, int64_t width, const Product& product, float* out) {
  const auto& [inner, a, b, transpose_b, alpha, beta] = product;
  const int64_t b_stride = transpose_b ? inner : width;
  for (int64_t begin = 0; begin < inner; begin += kInnerPart) {
    const int64_t part = std::min(kInnerPart, inner - begin);
    const float* b_part = transpose_b ? b + begin : b + begin * width;
    const dnnl_status_t status =
        dnnl_sgemm('N', transpose_b ? 'T' : 'N', rows, cols, part, alpha, a + begin, inner, b_part,
                   b_stride, begin == 0 ? beta : 1.0F, out, width);
    ZR_CHECK(status == dnnl_success, "oneDNN refused a product of {} x {} x {}: {}", rows, cols,
             part, static_cast<int>(status));
  }
}

// Calls body(begin, end) for each panel of so many rows; long and short ones take turns if later
// ones are longer. Of at least two parts, so that oneDNN is always called within a parallel region.
template <typename Body>
void for_each_panel(int64_t rows, const Body& body) {
  const int64_t panels = (rows + kPanel - 1) / kPanel;
  parallel_for(std::max<int64_t>(panels, 2), 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < std::min(last, panels); ++i) {
      const int64_t panel = i % 2 == 0 ? i / 2 : panels - 1 - i / 2;
      body(panel * kPanel, std::min(rows, (panel + 1) * kPanel));
    }
  });
}

// out = a * b and so on, of `cols` columns.
void multiply(int64_t rows, int64_t cols, const Product& product, float* out) {
  for_each_panel(rows, [&](int64_t begin, int64_t end) {
    Product panel = product;
    panel.a += begin * product.inner;
    multiply_panel(end - begin, cols, cols, panel, out + begin * cols);
  });
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

// The whole of a product that is symmetric, such as of a matrix with its transpose or of two
// polynomials of one symmetric matrix.
void multiply_symmetric(int64_t side, const Product& product, float* out) {
  for_each_panel(side, [&](int64_t begin, int64_t end) {
    Product panel = product;
    panel.a += begin * product.inner;
    multiply_panel(end - begin, end, side, panel, out + begin * side);
  });
  constexpr int64_t kTile = 32;
  for (int64_t r0 = 0; r0 < side; r0 += kTile) {
    for (int64_t c0 = 0; c0 <= r0; c0 += kTile) {
      for (int64_t r = r0; r < std::min(side, r0 + kTile); ++r) {
        for (int64_t c = c0; c < std::min(r, c0 + kTile); ++c) {
          out[c * side + r] = out[r * side + c];
        }
      }
    }
  }
}

// Memory for square matrices of the shorter side. The last two are used between products with X.
struct Squares {
  float* gram;
  float* polynomial;
  float* factor;
  float* temporary;
};

// Replaces squares.gram, A, by that after `steps` steps from `first` on but the last of them, and
// squares.polynomial by the P with which X becomes PX in these steps.
void step_on_square(int64_t side, const Orthogonalization& how, int first, int steps,
                    const Squares& squares) {
  const auto& [gram, polynomial, factor, temporary] = squares;
  for (int i = 0; i < steps; ++i) {
    const NewtonSchulzStep k = newton_schulz_step(how, first + i);
    float* const own = i == 0 ? polynomial : factor;
    std::copy_n(gram, side * side, own);
    multiply_symmetric(side, {.inner = side, .a = gram, .b = gram, .alpha = k.c, .beta = k.b}, own);
    for (int64_t row = 0; row < side; ++row) own[row * side + row] += k.a;
    if (i > 0) {
      multiply_symmetric(side, {.inner = side, .a = polynomial, .b = own}, temporary);
      std::copy_n(temporary, side * side, polynomial);
    }
    if (i + 1 == steps) break;
    multiply_symmetric(side, {.inner = side, .a = gram, .b = own}, temporary);
    multiply_symmetric(side, {.inner = side, .a = temporary, .b = own}, gram);
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
  const int at_once = length < 2 * side ? 1 : kSquareSteps;
  for (int step = 0; step < how.steps; step += at_once) {
    multiply_symmetric(side, {.inner = length, .a = x, .b = x, .transpose_b = true}, gram);
    // `next` has room for two squares if there is more than one step.
    step_on_square(side, how, step, std::min(at_once, how.steps - step),
                   {gram, polynomial, next, next + side * side});
    multiply(side, length, {.inner = side, .a = polynomial, .b = x}, next);
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
