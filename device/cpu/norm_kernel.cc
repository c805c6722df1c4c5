#include <algorithm>
#include <mutex>

#include "device/cpu/kernels.h"
#include "zerorun/exact_sum.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/norm_kernel.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which decides what these contain.
#include <hwy/highway.h>

#include "device/cpu/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zerorun {
namespace HWY_NAMESPACE {

template <class D, typename T>
HWY_INLINE hn::Vec<D> add_squares(D d, const T* HWY_RESTRICT values, hn::Vec<D> sum) {
  const auto value = hn::PromoteTo(d, load(hn::Rebind<float, D>(), values));
  return hn::MulAdd(value, value, sum);
}

// Element i of a chunk is added to lane i % 16, in ascending order of i; then the lanes are added
// as a binary tree: l and l + 8, then l and l + 4, and so on. The lanes are virtual, so registers
// of any width give the same sum. Squares of fp32 values are exact in double, so a fused
// multiply-add gives the same result as a multiplication and an addition.
template <typename T>
double squares_of_chunk(const T* HWY_RESTRICT chunk) {
  constexpr int64_t kLanes = 16;
  constexpr int64_t kColumns = 4;
  const hn::CappedTag<double, kColumns> d;
  HWY_ALIGN_MAX double columns[kColumns];
  for (int64_t column = 0; column < kColumns; column += static_cast<int64_t>(hn::Lanes(d))) {
    auto sum0 = hn::Zero(d);  // four independent sums, to hide the latency of additions
    auto sum4 = hn::Zero(d);
    auto sum8 = hn::Zero(d);
    auto sum12 = hn::Zero(d);
    for (int64_t i = column; i < kNormBlock; i += kLanes) {
      sum0 = add_squares(d, chunk + i, sum0);
      sum4 = add_squares(d, chunk + i + 4, sum4);
      sum8 = add_squares(d, chunk + i + 8, sum8);
      sum12 = add_squares(d, chunk + i + 12, sum12);
    }
    const auto sum = hn::Add(hn::Add(sum0, sum8), hn::Add(sum4, sum12));
    hn::Store(sum, d, columns + column);
  }
  return (columns[0] + columns[2]) + (columns[1] + columns[3]);
}

template <typename T>
void add_chunks(const T* values, int64_t count, ExactSum& sum) {
  int64_t i = 0;
  for (; i + kNormBlock <= count; i += kNormBlock) sum.add(squares_of_chunk(values + i));
  if (i == count) return;
  T last[kNormBlock] = {};  // adding zeros does not change a lane
  std::copy(values + i, values + count, last);
  sum.add(squares_of_chunk(last));
}

void squares_range(TensorView src, ExactSum& sum) {
  with_floating(src.dtype, [&]<typename T>(T*) { add_chunks(src.as<T>(), src.numel, sum); });
}

}  // namespace HWY_NAMESPACE
}  // namespace zerorun
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerorun {

HWY_EXPORT(squares_range);

namespace kernels {

void sum_of_squares(TensorView src, std::span<const SquaresSegment> segments, TensorView sums) {
  std::mutex mutex;
  parallel_for_shares(segments, kNormBlock, [&](const Share<SquaresSegment>& share) {
    share.for_each([&](const SquaresSegment& segment, int64_t begin, int64_t end) {
      ExactSum part;
      HWY_DYNAMIC_DISPATCH(squares_range)(src.slice(begin, end - begin), part);
      int64_t* const words = sums.as<int64_t>() + segment.sum * ExactSum::kWords;
      const std::lock_guard lock(mutex);
      // These are integer additions, so the order of threads does not matter.
      for (size_t i = 0; i < part.words.size(); ++i) words[i] += part.words[i];
    });
  });
}

}  // namespace kernels
}  // namespace zerorun
#endif  // HWY_ONCE
