// Products of activations with weights of any dtype. fp32 weights are used in place. 16-bit weights
// are converted to fp32 panel by panel in scratch memory that fits into the cache; gradients are
// computed in fp32 tiles and rounded once.
#include <algorithm>

#include "core/check.h"
#include "train/cpu/cpu_kernels.h"
#include "train/cpu/matrix.h"

namespace zerorun::train {

namespace {

// Widened panels of weights: about as large as a core's share of the second-level cache.
constexpr int64_t kPanelInner = 384;
constexpr int64_t kPanelCols = 384;
constexpr int64_t kTransposedPanelCols = 256;
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

void check_dense(const LinearShape& shape) {
  ZR_CHECK(shape.stride() == shape.in, "rows of {} elements lie {} apart", shape.in,
           shape.stride());
}

}  // namespace

float* floats(TensorView activation) {
  ZR_CHECK(activation.dtype == DType::fp32, "activations on the CPU are fp32, got {}",
           name_of(activation.dtype));
  return activation.as<float>();
}

float* CpuKernels::panel(int64_t rows, int64_t cols) {
  const auto numel = static_cast<size_t>(rows * cols);
  if (panel_.size() < numel) panel_.resize(numel);
  return panel_.data();
}

void CpuKernels::multiply(const GemmSize& size, const float* a, const GemmWeight& b, float beta,
                          float* c) {
  const int64_t stride = b.transposed ? size.inner : size.cols;
  if (b.weight.dtype == DType::fp32) {
    gemm(size, {a, size.inner}, {b.weight.as<float>(), stride, b.transposed}, {c, size.cols}, 1.0F,
         beta);
    return;
  }
  const Cuts cols(size.cols, b.transposed ? kTransposedPanelCols : kPanelCols);
  const Cuts inner(size.inner, kPanelInner);
  float* const widened = panel(inner.largest(), cols.largest());
  const StoredPanel weight{b.weight, stride};
  for (int64_t j = 0; j < cols.count(); ++j) {
    for (int64_t i = 0; i < inner.count(); ++i) {
      if (b.transposed) {
        widen(weight.at(cols.begin(j), inner.begin(i)), cols.size(j), inner.size(i), widened);
      } else {
        widen(weight.at(inner.begin(i), cols.begin(j)), inner.size(i), cols.size(j), widened);
      }
      gemm({size.rows, cols.size(j), inner.size(i)}, {a + inner.begin(i), size.inner},
           {widened, b.transposed ? inner.size(i) : cols.size(j), b.transposed},
           {c + cols.begin(j), size.cols}, 1.0F, i == 0 ? beta : 1.0F);
    }
  }
}

void CpuKernels::linear(const LinearShape& shape, TensorView x, TensorView weight, TensorView bias,
                        TensorView residual, TensorView y) {
  check_dense(shape);
  const bool start = !bias.empty() || !residual.empty();
  if (start) start_rows(shape.rows, shape.out, bias, floats(residual), floats(y));
  multiply({shape.rows, shape.out, shape.in}, floats(x), {weight, false}, start ? 1.0F : 0.0F,
           floats(y));
}

void CpuKernels::linear_gelu(const LinearShape& shape, TensorView x, TensorView weight,
                             TensorView bias, TensorView hidden, TensorView active) {
  linear(shape, x, weight, bias, {}, hidden);
  gelu(shape.rows * shape.out, floats(hidden), floats(active));
}

void CpuKernels::linear_transposed(const LinearShape& shape, TensorView y, TensorView weight,
                                   TensorView x) {
  check_dense(shape);
  multiply({shape.rows, shape.in, shape.out}, floats(y), {weight, true}, 0.0F, floats(x));
}

void CpuKernels::linear_transposed_gelu(const LinearShape& shape, TensorView dy, TensorView weight,
                                        TensorView hidden, TensorView active, TensorView dhidden) {
  linear_transposed(shape, dy, weight, dhidden);
  gelu_backward(shape.rows * shape.in, floats(hidden), floats(active), floats(dhidden));
}

void CpuKernels::linear_gradients(const LinearShape& shape, TensorView x, TensorView dy,
                                  const GradientView& weight, const GradientView& bias) {
  check_dense(shape);
  if (!bias.view.empty()) {
    std::vector<float> sums(static_cast<size_t>(shape.out));
    column_sums(shape.rows, shape.out, floats(dy), sums.data());
    write_gradient(sums.data(), bias);
  }
  const GemmInput inputs{floats(x), shape.in, true};
  if (weight.view.dtype == DType::fp32) {
    gemm({shape.in, shape.out, shape.rows}, inputs, {floats(dy), shape.out},
         {weight.view.as<float>(), shape.out}, 1.0F, weight.accumulate ? 1.0F : 0.0F);
    return;
  }
  const Cuts rows(shape.in, kGradientTile);
  const Cuts cols(shape.out, kGradientTile);
  float* const tile = panel(rows.largest(), cols.largest());
  const StoredPanel gradient{weight.view, shape.out};
  for (int64_t i = 0; i < rows.count(); ++i) {
    for (int64_t j = 0; j < cols.count(); ++j) {
      gemm({rows.size(i), cols.size(j), shape.rows}, {inputs.data + rows.begin(i), shape.in, true},
           {floats(dy) + cols.begin(j), shape.out}, {tile, cols.size(j)});
      round_into(tile, rows.size(i), cols.size(j), gradient.at(rows.begin(i), cols.begin(j)),
                 weight.accumulate);
    }
  }
}

}  // namespace zerorun::train
