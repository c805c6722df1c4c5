// Loads and stores fp32 vectors from and to the dtypes of parameters and gradients. Compiled once
// per instruction set; see Highway's foreach_target.h.
#if defined(ZERORUN_TRAIN_CPU_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ZERORUN_TRAIN_CPU_VECTORS_INL_H_
#undef ZERORUN_TRAIN_CPU_VECTORS_INL_H_
#else
#define ZERORUN_TRAIN_CPU_VECTORS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "device/cpu/convert-inl.h"
#include "zerorun/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace zerorun::train {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using FloatVector = hn::Vec<Floats>;

// Which lanes of a vector a loop body processes: all, or the first `count` at the end of a row.
struct Whole {};
struct Part {
  int64_t count;
};

// Calls body(i, Whole or Part) so that the vectors from i on cover [0, numel).
template <typename Body>
HWY_INLINE void for_vectors(int64_t numel, const Body& body) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(Floats()));
  int64_t i = 0;
  for (; i + lanes <= numel; i += lanes) body(i, Whole());
  if (i < numel) body(i, Part{numel - i});
}

template <typename T>
HWY_INLINE FloatVector load(const T* from, Whole /*whole*/) {
  return zerorun::HWY_NAMESPACE::load(Floats(), from);
}

// Lanes beyond the part are set to zero.
template <typename T>
HWY_INLINE FloatVector load(const T* from, Part part) {
  T lanes[HWY_MAX_BYTES / sizeof(float)] = {};
  std::copy_n(from, part.count, lanes);
  return load(lanes, Whole());
}

template <typename T>
HWY_INLINE void store(FloatVector value, T* to, Whole /*whole*/) {
  zerorun::HWY_NAMESPACE::store(Floats(), value, to);
}

template <typename T>
HWY_INLINE void store(FloatVector value, T* to, Part part) {
  T lanes[HWY_MAX_BYTES / sizeof(float)];
  store(value, lanes, Whole());
  std::copy_n(lanes, part.count, to);
}

// Sets the lanes beyond the part to `rest`.
HWY_INLINE FloatVector keep(FloatVector value, Whole /*whole*/, float /*rest*/ = 0.0F) {
  return value;
}
HWY_INLINE FloatVector keep(FloatVector value, Part part, float rest = 0.0F) {
  const Floats d;
  return hn::IfThenElse(hn::FirstN(d, static_cast<size_t>(part.count)), value, hn::Set(d, rest));
}

HWY_INLINE float sum_of_lanes(FloatVector value) {
  return hn::GetLane(hn::SumOfLanes(Floats(), value));
}

}  // namespace HWY_NAMESPACE
}  // namespace zerorun::train
HWY_AFTER_NAMESPACE();

#endif  // ZERORUN_TRAIN_CPU_VECTORS_INL_H_
