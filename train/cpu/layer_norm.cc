// Layer normalisation over the last dimension (Ba et al., arXiv:1607.06450).
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/parallel.h"
#include "train/cpu/cpu_kernels.h"
#include "train/cpu/matrix.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "train/cpu/layer_norm.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// After foreach_target.h:
#include "train/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zerorun::train {
namespace HWY_NAMESPACE {

// y = (x - mean) / deviation * gain + bias; writes mean and 1/deviation of each row to `moments`.
void norm_rows(const LayerNormShape& shape, const float* x, const float* gain, const float* bias,
               float* moments, float* y) {
  const Floats d;
  const int64_t width = shape.width;
  const float scale = 1.0F / static_cast<float>(width);
  for (int64_t row = 0; row < shape.rows; ++row, x += width, y += width, moments += 2) {
    auto sum = hn::Zero(d);
    for_vectors(width,
                [&](int64_t i, auto part) HWY_ATTR { sum = hn::Add(sum, load(x + i, part)); });
    const float mean = sum_of_lanes(sum) * scale;
    const auto means = hn::Set(d, mean);
    auto squares = hn::Zero(d);
    for_vectors(width, [&](int64_t i, auto part) HWY_ATTR {
      const auto centred = keep(hn::Sub(load(x + i, part), means), part);
      squares = hn::MulAdd(centred, centred, squares);
    });
    const float inverse = 1.0F / std::sqrt(sum_of_lanes(squares) * scale + shape.epsilon);
    const auto inverses = hn::Set(d, inverse);
    for_vectors(width, [&](int64_t i, auto part) HWY_ATTR {
      const auto normal = hn::Mul(hn::Sub(load(x + i, part), means), inverses);
      store(hn::MulAdd(normal, load(gain + i, part), load(bias + i, part)), y + i, part);
    });
    moments[0] = mean;
    moments[1] = inverse;
  }
}

// With n = (x - mean) / deviation and g = dy * gain:
// dx += (g - mean(g) - n * mean(g * n)) / deviation. Adds the gradients of gain and of bias to
// `sums` and to sums + width.
void norm_backward_rows(const LayerNormShape& shape, const float* x, const float* moments,
                        const float* gain, const float* dy, float* dx, float* sums) {
  const Floats d;
  const int64_t width = shape.width;
  const float scale = 1.0F / static_cast<float>(width);
  float* const dbias = sums + width;
  for (int64_t row = 0; row < shape.rows; ++row, x += width, dy += width, dx += width) {
    const auto mean = hn::Set(d, moments[2 * row]);
    const auto inverse = hn::Set(d, moments[2 * row + 1]);
    auto sum_g = hn::Zero(d);
    auto sum_gn = hn::Zero(d);
    for_vectors(width, [&](int64_t i, auto part) HWY_ATTR {
      const auto normal = hn::Mul(hn::Sub(load(x + i, part), mean), inverse);
      const auto dout = load(dy + i, part);
      const auto g = hn::Mul(dout, load(gain + i, part));
      sum_g = hn::Add(sum_g, g);
      sum_gn = hn::MulAdd(g, normal, sum_gn);
      store(hn::MulAdd(dout, normal, load(sums + i, part)), sums + i, part);
      store(hn::Add(dout, load(dbias + i, part)), dbias + i, part);
    });
    const auto mean_g = hn::Set(d, sum_of_lanes(sum_g) * scale);
    const auto mean_gn = hn::Set(d, sum_of_lanes(sum_gn) * scale);
    for_vectors(width, [&](int64_t i, auto part) HWY_ATTR {
      const auto normal = hn::Mul(hn::Sub(load(x + i, part), mean), inverse);
      const auto g = hn::Mul(load(dy + i, part), load(gain + i, part));
      const auto centred = hn::NegMulAdd(normal, mean_gn, hn::Sub(g, mean_g));
      store(hn::MulAdd(centred, inverse, load(dx + i, part)), dx + i, part);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace zerorun::train
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerorun::train {

HWY_EXPORT(norm_rows);
HWY_EXPORT(norm_backward_rows);

namespace {

// Rows whose gradients are summed first, which bounds the rounding error.
constexpr int64_t kNormRows = 32;

std::vector<float> in_fp32(TensorView parameter) {
  std::vector<float> values(static_cast<size_t>(parameter.numel));
  start_rows(1, parameter.numel, parameter, nullptr, values.data());
  return values;
}

}  // namespace

void CpuKernels::layer_norm(const LayerNormShape& shape, TensorView x, TensorView gain,
                            TensorView bias, TensorView moments, TensorView y) {
  const std::vector<float> gains = in_fp32(gain);
  const std::vector<float> biases = in_fp32(bias);
  const float* const from = floats(x);
  float* const sums = floats(moments);
  float* const to = floats(y);
  parallel_for(shape.rows, kNormRows, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(norm_rows)
    ({end - begin, shape.width, shape.epsilon}, from + begin * shape.width, gains.data(),
     biases.data(), sums + 2 * begin, to + begin * shape.width);
  });
}

void CpuKernels::layer_norm_backward(const LayerNormShape& shape, const LayerNormState& state,
                                     TensorView dy, const LayerNormGradients& gradients) {
  const int64_t width = shape.width;
  const int64_t blocks = (shape.rows + kNormRows - 1) / kNormRows;
  const std::vector<float> gains = in_fp32(state.gain);
  const float* const x = floats(state.x);
  const float* const moments = floats(state.moments);
  const float* const dout = floats(dy);
  float* const dx = floats(gradients.dx.view);
  if (!gradients.dx.accumulate) std::fill_n(dx, shape.rows * width, 0.0F);
  // Sums of each block of rows: the gradient of gain, then that of bias.
  std::vector<float> partial(static_cast<size_t>(blocks * 2 * width), 0.0F);
  parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t row = block * kNormRows;
      HWY_DYNAMIC_DISPATCH(norm_backward_rows)
      ({std::min(kNormRows, shape.rows - row), width, shape.epsilon}, x + row * width,
       moments + 2 * row, gains.data(), dout + row * width, dx + row * width,
       partial.data() + block * 2 * width);
    }
  });
  std::vector<float> sums(static_cast<size_t>(2 * width), 0.0F);
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t i = 0; i < 2 * width; ++i) {
      sums[static_cast<size_t>(i)] += partial[static_cast<size_t>(block * 2 * width + i)];
    }
  }
  write_gradient(sums.data(), gradients.gain);
  write_gradient(sums.data() + width, gradients.bias);
}

}  // namespace zerorun::train
#endif  // HWY_ONCE
