#include "train/cpu/matrix.h"

#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/check.h"
#include "core/parallel.h"
#include "device/convert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "train/cpu/matrix.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// After foreach_target.h:
#include <hwy/contrib/math/math-inl.h>

#include "train/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zerorun::train {
namespace HWY_NAMESPACE {

// Calls body(pointer) with a pointer of the view's element type.
template <typename Body>
HWY_INLINE void with_storage(TensorView view, const Body& body) {
  with_floating(view.dtype, [&]<typename T>(T*) HWY_ATTR { body(view.as<T>()); });
}

void widen_rows(const StoredPanel& from, int64_t rows, int64_t cols, float* to) {
  with_storage(from.corner, [&](const auto* source) HWY_ATTR {
    for (int64_t row = 0; row < rows; ++row, source += from.stride, to += cols) {
      for_vectors(cols, [&](int64_t i, auto part)
                            HWY_ATTR { store(load(source + i, part), to + i, part); });
    }
  });
}

template <typename T>
HWY_INLINE void write(const float* from, int64_t numel, T* to, bool accumulate) {
  for_vectors(numel, [&](int64_t i, auto part) HWY_ATTR {
    auto value = load(from + i, part);
    if (accumulate) value = hn::Add(load(to + i, part), value);
    store(value, to + i, part);
  });
}

void round_rows(const float* from, int64_t rows, int64_t cols, const StoredPanel& to,
                bool accumulate) {
  with_storage(to.corner, [&](auto* target) HWY_ATTR {
    for (int64_t row = 0; row < rows; ++row) {
      write(from + row * cols, cols, target + row * to.stride, accumulate);
    }
  });
}

void write_view(const float* from, const GradientView& to) {
  with_storage(to.view,
               [&](auto* target) HWY_ATTR { write(from, to.view.numel, target, to.accumulate); });
}

void start_row_range(int64_t rows, TensorView bias, const float* residual, float* y) {
  const int64_t width = bias.numel;
  with_storage(bias, [&](const auto* values) HWY_ATTR {
    for (int64_t first = 0; first < rows * width; first += width) {
      for_vectors(width, [&](int64_t i, auto part) HWY_ATTR {
        auto value = load(values + i, part);
        if (residual != nullptr) value = hn::Add(load(residual + first + i, part), value);
        store(value, y + first + i, part);
      });
    }
  });
}

// Blocks of rows are summed first, which bounds the rounding error.
void sum_columns(const float* x, int64_t stride, int64_t rows, int64_t cols, float* sums) {
  constexpr int64_t kBlockRows = 32;
  constexpr int64_t kBlockCols = 256;
  std::array<float, kBlockCols> block;
  for (int64_t left = 0; left < cols; left += kBlockCols) {
    const int64_t width = std::min(kBlockCols, cols - left);
    std::fill_n(sums + left, width, 0.0F);
    for (int64_t top = 0; top < rows; top += kBlockRows) {
      std::fill_n(block.data(), width, 0.0F);
      for (int64_t row = top; row < std::min(rows, top + kBlockRows); ++row) {
        write(x + row * stride + left, width, block.data(), /*accumulate=*/true);
      }
      write(block.data(), width, sums + left, /*accumulate=*/true);
    }
  }
}

// gelu(x) = x * gate and gelu'(x) = gate + x * gate * (1 - gate) * slope, where
// gate = (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)), slope = 2u' and
// u = sqrt(2/pi) * (x + 0.044715 x^3): Hendrycks and Gimpel, arXiv:1606.08415, section 2.
struct GeluTerms {
  FloatVector gate;
  FloatVector slope;
};

HWY_INLINE GeluTerms gelu_terms(FloatVector x) {
  const Floats d;
  const auto twice_root = hn::Set(d, 1.5957691216057308F);  // 2 sqrt(2/pi)
  const auto one = hn::Set(d, 1.0F);
  const auto x2 = hn::Mul(x, x);
  const auto twice_u = hn::Mul(hn::Mul(twice_root, x), hn::MulAdd(hn::Set(d, 0.044715F), x2, one));
  // Beyond 87 exp overflows, and the gate is 0 or 1 within fp32.
  const auto exponent = hn::Max(hn::Set(d, -87.0F), hn::Min(hn::Neg(twice_u), hn::Set(d, 87.0F)));
  const auto gate = hn::Div(one, hn::Add(one, hn::Exp(d, exponent)));
  const auto slope = hn::Mul(twice_root, hn::MulAdd(hn::Set(d, 3 * 0.044715F), x2, one));
  return {gate, slope};
}

void gelu_range(int64_t numel, const float* x, float* y) {
  for_vectors(numel, [&](int64_t i, auto part) HWY_ATTR {
    const auto value = load(x + i, part);
    store(hn::Mul(value, gelu_terms(value).gate), y + i, part);
  });
}

void gelu_backward_range(int64_t numel, const float* x, float* y, float* dy_to_dx) {
  for_vectors(numel, [&](int64_t i, auto part) HWY_ATTR {
    const auto value = load(x + i, part);
    const GeluTerms terms = gelu_terms(value);
    const auto out = hn::Mul(value, terms.gate);
    const auto rest = hn::NegMulAdd(out, terms.gate, out);  // out * (1 - gate)
    const auto derivative = hn::MulAdd(rest, terms.slope, terms.gate);
    store(out, y + i, part);
    store(hn::Mul(load(dy_to_dx + i, part), derivative), dy_to_dx + i, part);
  });
}

HWY_INLINE float maximum(const float* row, int64_t numel) {
  const Floats d;
  auto largest = hn::Set(d, row[0]);
  for_vectors(numel, [&](int64_t i, auto part) HWY_ATTR {
    // Lanes beyond the part repeat the first score, so that they do not affect the maximum.
    largest = hn::Max(largest, keep(load(row + i, part), part, row[0]));
  });
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

// exp for arguments <= 0, whose results below 1e-37 are zero.
HWY_INLINE FloatVector exp_of(FloatVector x) {
  const Floats d;
  const auto value = hn::Exp(d, hn::Max(x, hn::Set(d, -87.0F)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0F)), value);
}

SoftmaxSums exponentiate_row(float* row, int64_t numel) {
  const float largest = maximum(row, numel);
  const auto shift = hn::Set(Floats(), largest);
  auto sums = hn::Zero(Floats());
  for_vectors(numel, [&](int64_t i, auto part) HWY_ATTR {
    const auto value = exp_of(hn::Sub(load(row + i, part), shift));
    store(value, row + i, part);
    sums = hn::Add(sums, keep(value, part));
  });
  const float sum = sum_of_lanes(sums);
  return {sum, largest + std::log(sum)};
}

void exponentiate_from_row(float* row, int64_t numel, float log_sum) {
  const auto shift = hn::Set(Floats(), log_sum);
  for_vectors(numel, [&](int64_t i, auto part) HWY_ATTR {
    store(exp_of(hn::Sub(load(row + i, part), shift)), row + i, part);
  });
}

float dot_rows(const float* a, const float* b, int64_t numel) {
  auto sums = hn::Zero(Floats());
  for_vectors(numel, [&](int64_t i, auto part) HWY_ATTR {
    sums = hn::MulAdd(load(a + i, part), load(b + i, part), sums);
  });
  return sum_of_lanes(sums);
}

}  // namespace HWY_NAMESPACE
}  // namespace zerorun::train
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerorun::train {

HWY_EXPORT(widen_rows);
HWY_EXPORT(round_rows);
HWY_EXPORT(write_view);
HWY_EXPORT(start_row_range);
HWY_EXPORT(sum_columns);
HWY_EXPORT(gelu_range);
HWY_EXPORT(gelu_backward_range);
HWY_EXPORT(exponentiate_row);
HWY_EXPORT(exponentiate_from_row);
HWY_EXPORT(dot_rows);

namespace {

constexpr int64_t kElements = 4096;  // minimum number of elements per thread
constexpr int64_t kColumns = 64;

int64_t rows_per_piece(int64_t cols) { return std::max<int64_t>(1, kElements / cols); }

}  // namespace

void gemm(const GemmSize& size, GemmInput a, GemmInput b, GemmOutput out, float alpha, float beta) {
  if (size.rows == 0 || size.cols == 0) return;
  const dnnl_status_t status =
      dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', size.rows, size.cols,
                 size.inner, alpha, a.data, a.stride, b.data, b.stride, beta, out.data, out.stride);
  ZR_CHECK(status == dnnl_success, "oneDNN refused a product of {} x {} x {}: {}", size.rows,
           size.cols, size.inner, static_cast<int>(status));
}

void widen(const StoredPanel& from, int64_t rows, int64_t cols, float* to) {
  parallel_for(rows, rows_per_piece(cols), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(widen_rows)(from.at(begin, 0), end - begin, cols, to + begin * cols);
  });
}

void round_into(const float* from, int64_t rows, int64_t cols, const StoredPanel& to,
                bool accumulate) {
  parallel_for(rows, rows_per_piece(cols), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(round_rows)
    (from + begin * cols, end - begin, cols, to.at(begin, 0), accumulate);
  });
}

void write_gradient(const float* from, const GradientView& to) {
  HWY_DYNAMIC_DISPATCH(write_view)(from, to);
}

void start_rows(int64_t rows, int64_t width, TensorView bias, const float* residual, float* y) {
  if (bias.empty()) {
    if (residual == nullptr) {
      std::fill_n(y, rows * width, 0.0F);
    } else if (residual != y) {
      std::copy_n(residual, rows * width, y);
    }
    return;
  }
  parallel_for(rows, rows_per_piece(width), [&](int64_t begin, int64_t end) {
    const float* from = residual == nullptr ? nullptr : residual + begin * width;
    HWY_DYNAMIC_DISPATCH(start_row_range)(end - begin, bias, from, y + begin * width);
  });
}

void column_sums(int64_t rows, int64_t width, const float* x, float* sums) {
  parallel_for(width, kColumns, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(sum_columns)(x + begin, width, rows, end - begin, sums + begin);
  });
}

void gelu(int64_t numel, const float* x, float* y) {
  parallel_for(numel, kElements, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(gelu_range)(end - begin, x + begin, y + begin);
  });
}

void gelu_backward(int64_t numel, const float* x, float* y, float* dy_to_dx) {
  parallel_for(numel, kElements, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(gelu_backward_range)
    (end - begin, x + begin, y + begin, dy_to_dx + begin);
  });
}

SoftmaxSums exponentiate(float* row, int64_t numel) {
  return HWY_DYNAMIC_DISPATCH(exponentiate_row)(row, numel);
}

void exponentiate_from(float* row, int64_t numel, float log_sum) {
  HWY_DYNAMIC_DISPATCH(exponentiate_from_row)(row, numel, log_sum);
}

void softmax_backward(const float* p, int64_t numel, float mean, float* ds) {
  for (int64_t i = 0; i < numel; ++i) ds[i] = p[i] * (ds[i] - mean);
}

void scale(float* row, int64_t numel, float factor) {
  for (int64_t i = 0; i < numel; ++i) row[i] *= factor;
}

float dot(const float* a, const float* b, int64_t numel) {
  return HWY_DYNAMIC_DISPATCH(dot_rows)(a, b, numel);
}

}  // namespace zerorun::train
#endif  // HWY_ONCE
