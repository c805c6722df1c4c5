#include "train/cpu/layer_norm.h"

#include <algorithm>
#include <vector>

#include "core/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "train/cpu/layer_norm.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// After foreach_target.h:
#include "train/cpu/storage-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zerorun::train {
namespace HWY_NAMESPACE {

void norm_rows(const LayerNormShape& shape, const float* x, LayerNormWeights weights,
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
      store(hn::MulAdd(normal, load(weights.gain + i, part), load(weights.bias + i, part)), y + i,
            part);
    });
    moments[0] = mean;
    moments[1] = inverse;
  }
}

// With n = (x - mean) / deviation and g = dy * gain:
// dx = (g - mean(g) - n * mean(g * n)) / deviation.
void norm_backward_rows(const LayerNormShape& shape, const float* x, const float* moments,
                        const float* gain, const float* dy, float* dx, LayerNormSums sums) {
  const Floats d;
  const int64_t width = shape.width;
  const float scale = 1.0F / static_cast<float>(width);
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
      store(hn::MulAdd(dout, normal, load(sums.gain + i, part)), sums.gain + i, part);
      store(hn::Add(dout, load(sums.bias + i, part)), sums.bias + i, part);
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
// rows whose gradients are summed first, which bounds the rounding error
constexpr int64_t kRows = 32;
}  // namespace

void layer_norm(const LayerNormShape& shape, const float* x, LayerNormWeights weights,
                float* moments, float* y) {
  parallel_for(shape.rows, kRows, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(norm_rows)
    ({end - begin, shape.width, shape.epsilon}, x + begin * shape.width, weights,
     moments + 2 * begin, y + begin * shape.width);
  });
}

void layer_norm_backward(const LayerNormShape& shape, const float* x, const float* moments,
                         const float* gain, const float* dy, float* dx, LayerNormSums sums) {
  const int64_t width = shape.width;
  const int64_t blocks = (shape.rows + kRows - 1) / kRows;
  std::vector<float> partial(static_cast<size_t>(blocks * 2 * width), 0.0F);
  parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t row = block * kRows;
      const int64_t offset = row * width;
      float* const block_sums = partial.data() + block * 2 * width;
      HWY_DYNAMIC_DISPATCH(norm_backward_rows)
      ({std::min(kRows, shape.rows - row), width, shape.epsilon}, x + offset, moments + 2 * row,
       gain, dy + offset, dx + offset, {block_sums, block_sums + width});
    }
  });
  std::fill_n(sums.gain, width, 0.0F);
  std::fill_n(sums.bias, width, 0.0F);
  for (int64_t block = 0; block < blocks; ++block) {
    const float* const block_sums = partial.data() + block * 2 * width;
    for (int64_t i = 0; i < width; ++i) sums.gain[i] += block_sums[i];
    for (int64_t i = 0; i < width; ++i) sums.bias[i] += block_sums[width + i];
  }
}

}  // namespace zerorun::train
#endif  // HWY_ONCE
