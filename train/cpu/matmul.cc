#include "train/cpu/matmul.h"

#include <algorithm>

#include "train/cpu/elementwise.h"
#include "train/cpu/gemm.h"

namespace zerorun::train {

namespace {

// Widened panels of weights: about as large as a core's share of the second-level cache.
constexpr int64_t kForwardInner = 384;
constexpr int64_t kForwardCols = 384;
constexpr int64_t kTransposedRows = 256;
constexpr int64_t kTransposedInner = 384;
// Tiles of weight gradients: below about 530 x 530 oneDNN reads its inputs without packing them,
// which is half as fast where rows lie a multiple of 4 KiB apart.
constexpr int64_t kGradientTile = 768;

// Cuts [0, numel) into equal parts of about `target`.
class Cuts {
 public:
  Cuts(int64_t numel, int64_t target)
      : numel_(numel), count_(std::max<int64_t>(1, (numel + target / 2) / target)) {}
  int64_t count() const { return count_; }
  int64_t begin(int64_t part) const { return numel_ * part / count_; }
  int64_t size(int64_t part) const { return begin(part + 1) - begin(part); }
  int64_t largest() const { return (numel_ + count_ - 1) / count_; }

 private:
  int64_t numel_;
  int64_t count_;
};

StoredPanel panel_at(TensorView matrix, int64_t stride, int64_t row, int64_t col) {
  const int64_t begin = row * stride + col;
  return {matrix.slice(begin, matrix.numel - begin), stride};
}

}  // namespace

float* Matmul::panel(int64_t rows, int64_t cols) {
  const auto numel = static_cast<size_t>(rows * cols);
  if (scratch_.size() < numel) scratch_.resize(numel);
  return scratch_.data();
}

void Matmul::forward(const LinearShape& shape, const float* x, TensorView weight, float beta,
                     float* y) {
  if (weight.dtype == DType::fp32) {
    gemm({shape.rows, shape.out, shape.in}, {x, shape.in}, {weight.as<float>(), shape.out},
         {y, shape.out}, 1.0F, beta);
    return;
  }
  const Cuts cols(shape.out, kForwardCols);
  const Cuts inner(shape.in, kForwardInner);
  float* const widened = panel(inner.largest(), cols.largest());
  for (int64_t j = 0; j < cols.count(); ++j) {
    for (int64_t i = 0; i < inner.count(); ++i) {
      widen(panel_at(weight, shape.out, inner.begin(i), cols.begin(j)), inner.size(i), cols.size(j),
            widened);
      gemm({shape.rows, cols.size(j), inner.size(i)}, {x + inner.begin(i), shape.in},
           {widened, cols.size(j)}, {y + cols.begin(j), shape.out}, 1.0F, i == 0 ? beta : 1.0F);
    }
  }
}

void Matmul::transposed(const LinearShape& shape, const float* y, TensorView weight, float* x) {
  if (weight.dtype == DType::fp32) {
    gemm({shape.rows, shape.in, shape.out}, {y, shape.out}, {weight.as<float>(), shape.out, true},
         {x, shape.in});
    return;
  }
  const Cuts rows(shape.in, kTransposedRows);
  const Cuts inner(shape.out, kTransposedInner);
  float* const widened = panel(rows.largest(), inner.largest());
  for (int64_t j = 0; j < rows.count(); ++j) {
    for (int64_t i = 0; i < inner.count(); ++i) {
      widen(panel_at(weight, shape.out, rows.begin(j), inner.begin(i)), rows.size(j), inner.size(i),
            widened);
      gemm({shape.rows, rows.size(j), inner.size(i)}, {y + inner.begin(i), shape.out},
           {widened, inner.size(i), true}, {x + rows.begin(j), shape.in}, 1.0F,
           i == 0 ? 0.0F : 1.0F);
    }
  }
}

void Matmul::weight_gradient(const LinearShape& shape, const float* x, const float* dy,
                             const GradientView& weight) {
  if (weight.view.dtype == DType::fp32) {
    gemm({shape.in, shape.out, shape.rows}, {x, shape.in, true}, {dy, shape.out},
         {weight.view.as<float>(), shape.out}, 1.0F, weight.accumulate ? 1.0F : 0.0F);
    return;
  }
  const Cuts rows(shape.in, kGradientTile);
  const Cuts cols(shape.out, kGradientTile);
  float* const tile = panel(rows.largest(), cols.largest());
  for (int64_t i = 0; i < rows.count(); ++i) {
    for (int64_t j = 0; j < cols.count(); ++j) {
      gemm({rows.size(i), cols.size(j), shape.rows}, {x + rows.begin(i), shape.in, true},
           {dy + cols.begin(j), shape.out}, {tile, cols.size(j)});
      round_into(tile, rows.size(i), cols.size(j),
                 panel_at(weight.view, shape.out, rows.begin(i), cols.begin(j)), weight.accumulate);
    }
  }
}

}  // namespace zerorun::train
