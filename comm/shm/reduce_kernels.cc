#include "comm/shm/reduce_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/shm/reduce_kernels.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/parallel.h"
#include "device/cpu/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace zerorun::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Beside those of floating-point numbers in convert-inl.h.
HWY_INLINE hn::Vec<hn::ScalableTag<int64_t>> load(hn::ScalableTag<int64_t> d, const int64_t* from) {
  return hn::LoadU(d, from);
}

// Two neighbouring vectors. With `stream`, `to` is aligned to a vector and the store bypasses the
// caches.
template <class D, typename T>
HWY_INLINE void store_pair(D d, hn::Vec<D> low, hn::Vec<D> high, T* to, bool stream) {
  if constexpr (sizeof(T) == sizeof(uint16_t)) {
    const auto low_bits = to_16_bits(d, low, T{});
    const auto high_bits = to_16_bits(d, high, T{});
#if HWY_TARGET != HWY_SCALAR
    if (stream) {
      const hn::Twice<U16Of<D>> whole;
      hn::Stream(hn::Combine(whole, high_bits, low_bits), whole, &to->bits);
      return;
    }
#endif
    hn::StoreU(low_bits, U16Of<D>(), &to->bits);
    hn::StoreU(high_bits, U16Of<D>(), &to[hn::Lanes(d)].bits);
  } else if (stream) {
    hn::Stream(low, d, to);
    hn::Stream(high, d, to + hn::Lanes(d));
  } else {
    hn::StoreU(low, d, to);
    hn::StoreU(high, d, to + hn::Lanes(d));
  }
}

// Beside those of floating-point numbers in device/convert.h.
using zerorun::narrow;
using zerorun::widen;
inline int64_t widen(int64_t value) { return value; }
inline void narrow(int64_t value, int64_t* out) { *out = value; }

struct Sum {
  template <class V>
  static V vectors(V a, V b) {
    return hn::Add(a, b);
  }
  static float scalars(float a, float b) { return a + b; }
  static int64_t scalars(int64_t a, int64_t b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  }
};
// The later operand wins if it is larger or NaN; so the first NaN stays, and of equals the first.
struct Max {
  template <class V>
  static V vectors(V a, V b) {
    return hn::IfThenElse(hn::Or(hn::Gt(b, a), hn::Ne(b, b)), b, a);
  }
  template <typename T>
  static T scalars(T a, T b) {
    return b > a || b != b ? b : a;
  }
};
struct Min {
  template <class V>
  static V vectors(V a, V b) {
    return hn::IfThenElse(hn::Or(hn::Lt(b, a), hn::Ne(b, b)), b, a);
  }
  template <typename T>
  static T scalars(T a, T b) {
    return b < a || b != b ? b : a;
  }
};

// The tree in which values are combined (reduce_kernels.h) has four neighbours at the bottom of
// each branch. Complete branches of equal size are combined at once, as bits carry when a counter
// counts the branches; so one partial result per level is kept.
constexpr size_t kBranch = 4;
constexpr int kLevels = 24;

// Combines 1 to 4 values that `get` gives.
template <class Op, typename Get>
auto combine_scalars(size_t count, const Get& get) {
  auto value = get(0);
  if (count > 1) value = Op::scalars(value, get(1));
  if (count == 3) value = Op::scalars(value, get(2));
  if (count == 4) value = Op::scalars(value, Op::scalars(get(2), get(3)));
  return value;
}

template <typename In, class Op, typename Wide>
Wide reduce_element(std::span<const std::byte* const> bytes, int64_t i) {
  const auto branch = [&](size_t first) {
    return combine_scalars<Op>(std::min(kBranch, bytes.size() - first), [&](size_t rank) {
      return widen(reinterpret_cast<const In*>(bytes[first + rank])[i]);
    });
  };
  if (bytes.size() <= kBranch) return branch(0);
  std::array<Wide, kLevels> partial;
  int kept = 0;
  for (size_t number = 0; number * kBranch < bytes.size(); ++number) {
    Wide value = branch(number * kBranch);
    for (size_t carry = number; (carry & 1) != 0; carry >>= 1) {
      value = Op::scalars(partial[static_cast<size_t>(--kept)], value);
    }
    partial[static_cast<size_t>(kept++)] = value;
  }
  while (kept > 1) {
    --kept;
    partial[static_cast<size_t>(kept - 1)] =
        Op::scalars(partial[static_cast<size_t>(kept - 1)], partial[static_cast<size_t>(kept)]);
  }
  return partial[0];
}

// Four neighbouring vectors of values: sources [first, first + count), 1 to 4 of them.
template <typename In, class Op, class D>
HWY_INLINE void reduce_branch(D d, const std::byte* const* first, size_t count, int64_t i,
                              hn::Vec<D>& v0, hn::Vec<D>& v1, hn::Vec<D>& v2, hn::Vec<D>& v3) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto source = [&](size_t rank) { return reinterpret_cast<const In*>(first[rank]) + i; };
  const auto add = [&](size_t rank) {
    const In* next = source(rank);
    v0 = Op::vectors(v0, load(d, next));
    v1 = Op::vectors(v1, load(d, next + lanes));
    v2 = Op::vectors(v2, load(d, next + 2 * lanes));
    v3 = Op::vectors(v3, load(d, next + 3 * lanes));
  };
  const In* from = source(0);
  v0 = load(d, from);
  v1 = load(d, from + lanes);
  v2 = load(d, from + 2 * lanes);
  v3 = load(d, from + 3 * lanes);
  if (count > 1) add(1);
  if (count == 3) add(2);
  if (count < 4) return;
  const In* a = source(2);
  const In* b = source(3);
  v0 = Op::vectors(v0, Op::vectors(load(d, a), load(d, b)));
  v1 = Op::vectors(v1, Op::vectors(load(d, a + lanes), load(d, b + lanes)));
  v2 = Op::vectors(v2, Op::vectors(load(d, a + 2 * lanes), load(d, b + 2 * lanes)));
  v3 = Op::vectors(v3, Op::vectors(load(d, a + 3 * lanes), load(d, b + 3 * lanes)));
}

// The same of all sources, more than 4. Partial results of larger branches are few and stay in the
// first cache.
template <typename In, class Op, class D>
void reduce_branches(D d, std::span<const std::byte* const> bytes, int64_t i, hn::Vec<D>& v0,
                     hn::Vec<D>& v1, hn::Vec<D>& v2, hn::Vec<D>& v3) {
  constexpr size_t kSlot = 4 * hn::MaxLanes(d);
  HWY_ALIGN hn::TFromD<D> partial[kLevels * kSlot];  // NOLINT(modernize-avoid-c-arrays)
  const size_t lanes = hn::Lanes(d);
  int kept = 0;
  const auto join = [&](int level) {
    const auto* left = partial + static_cast<size_t>(level) * kSlot;
    v0 = Op::vectors(hn::Load(d, left), v0);
    v1 = Op::vectors(hn::Load(d, left + lanes), v1);
    v2 = Op::vectors(hn::Load(d, left + 2 * lanes), v2);
    v3 = Op::vectors(hn::Load(d, left + 3 * lanes), v3);
  };
  const size_t branches = (bytes.size() + kBranch - 1) / kBranch;
  for (size_t number = 0; number < branches; ++number) {
    const size_t first = number * kBranch;
    reduce_branch<In, Op>(d, bytes.data() + first, std::min(kBranch, bytes.size() - first), i, v0,
                          v1, v2, v3);
    for (size_t carry = number; (carry & 1) != 0; carry >>= 1) join(--kept);
    if (number + 1 == branches) break;
    auto* place = partial + static_cast<size_t>(kept++) * kSlot;
    hn::Store(v0, d, place);
    hn::Store(v1, d, place + lanes);
    hn::Store(v2, d, place + 2 * lanes);
    hn::Store(v3, d, place + 3 * lanes);
  }
  while (kept > 0) join(--kept);
}

// Elements [begin, end). Partial results of up to 4 sources stay in registers. What is constant in
// the loop is no template parameter: its branches are predicted, and three instances would take
// long to compile.
template <typename In, typename Out, class Op>
void reduce_range(const Reduction& reduction, TensorView view, int64_t begin, int64_t end,
                  bool stream) {
  const std::span<const std::byte* const> bytes = reduction.sources;
  Out* const out = view.as<Out>();
  const bool accumulate = reduction.output == Output::accumulate;
  stream = stream && !accumulate;
  using Wide = decltype(widen(In{}));
  const hn::ScalableTag<Wide> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto one = [&](int64_t i) {
    Wide value = reduce_element<In, Op, Wide>(bytes, i);
    if (accumulate) value = Op::scalars(widen(out[i]), value);
    narrow(value, out + i);
  };

  int64_t i = begin;
  if (stream) {
    const auto vector_bytes = hn::Lanes(hn::ScalableTag<uint8_t>());
    for (; i < end && reinterpret_cast<uintptr_t>(out + i) % vector_bytes != 0; ++i) one(i);
  }
  auto v0 = hn::Zero(d);
  auto v1 = v0;
  auto v2 = v0;
  auto v3 = v0;
  for (; i + 4 * lanes <= end; i += 4 * lanes) {
    if (bytes.size() <= kBranch) {
      reduce_branch<In, Op>(d, bytes.data(), bytes.size(), i, v0, v1, v2, v3);
    } else {
      reduce_branches<In, Op>(d, bytes, i, v0, v1, v2, v3);
    }
    if (accumulate) {
      v0 = Op::vectors(load(d, out + i), v0);
      v1 = Op::vectors(load(d, out + i + lanes), v1);
      v2 = Op::vectors(load(d, out + i + 2 * lanes), v2);
      v3 = Op::vectors(load(d, out + i + 3 * lanes), v3);
    }
    store_pair(d, v0, v1, out + i, stream);
    store_pair(d, v2, v3, out + i + 2 * lanes, stream);
  }
  for (; i < end; ++i) one(i);
  if (stream) hwy::FlushStream();
}

template <typename T>
void reduce_any(const Reduction& reduction, TensorView out, int64_t begin, int64_t end,
                bool stream) {
  switch (reduction.op) {
    case ReduceOp::sum:
      return reduce_range<T, T, Sum>(reduction, out, begin, end, stream);
    case ReduceOp::max:
      return reduce_range<T, T, Max>(reduction, out, begin, end, stream);
    case ReduceOp::min:
      return reduce_range<T, T, Min>(reduction, out, begin, end, stream);
  }
}

template <typename In>
void sum_floats(const Reduction& reduction, TensorView out, int64_t begin, int64_t end,
                bool stream) {
  switch (out.dtype) {
    case DType::bf16:
      return reduce_range<In, Bf16, Sum>(reduction, out, begin, end, stream);
    case DType::fp16:
      return reduce_range<In, Fp16, Sum>(reduction, out, begin, end, stream);
    default:
      return reduce_range<In, float, Sum>(reduction, out, begin, end, stream);
  }
}

void ReducePart(const Reduction& reduction, TensorView out, int64_t begin, int64_t end,
                bool stream) {
  switch (reduction.dtype) {
    case DType::fp32:
      if (out.dtype == DType::fp32) return reduce_any<float>(reduction, out, begin, end, stream);
      return sum_floats<float>(reduction, out, begin, end, stream);
    case DType::int64:
      return reduce_any<int64_t>(reduction, out, begin, end, stream);
    case DType::bf16:
      return sum_floats<Bf16>(reduction, out, begin, end, stream);
    case DType::fp16:
      return sum_floats<Fp16>(reduction, out, begin, end, stream);
    case DType::uint8:
      return;
  }
}

void CopyStreaming(std::byte* out, const std::byte* in, size_t nbytes) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  const size_t head = std::min(nbytes, (lanes - reinterpret_cast<uintptr_t>(out) % lanes) % lanes);
  std::memcpy(out, in, head);
  auto* to = reinterpret_cast<uint8_t*>(out);
  const auto* from = reinterpret_cast<const uint8_t*>(in);
  size_t i = head;
  for (; i + 4 * lanes <= nbytes; i += 4 * lanes) {
    const auto v0 = hn::LoadU(d, from + i);
    const auto v1 = hn::LoadU(d, from + i + lanes);
    const auto v2 = hn::LoadU(d, from + i + 2 * lanes);
    const auto v3 = hn::LoadU(d, from + i + 3 * lanes);
    hn::Stream(v0, d, to + i);
    hn::Stream(v1, d, to + i + lanes);
    hn::Stream(v2, d, to + i + 2 * lanes);
    hn::Stream(v3, d, to + i + 3 * lanes);
  }
  hwy::FlushStream();
  std::memcpy(out + i, in + i, nbytes - i);
}

}  // namespace zerorun::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerorun {

namespace {

HWY_EXPORT(ReducePart);
HWY_EXPORT(CopyStreaming);

// Outputs of this size exceed a core's share of the last cache: they are gone from it before they
// are used.
constexpr size_t kStreamBytes = size_t{2} << 20;
// A part of this size is worth a thread of its own.
constexpr int64_t kGrainBytes = int64_t{256} << 10;

}  // namespace

void reduce(const Reduction& reduction, TensorView out) {
  const bool in_place = std::find(reduction.sources.begin(), reduction.sources.end(), out.data) !=
                        reduction.sources.end();
  const bool stream = !in_place && out.nbytes() >= kStreamBytes;
  const auto grain = kGrainBytes / static_cast<int64_t>(size_of(out.dtype));
  parallel_for(out.numel, grain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(ReducePart)(reduction, out, begin, end, stream);
  });
}

void copy_bytes(std::byte* out, const std::byte* in, size_t nbytes) {
  if (nbytes == 0) return;
  if (nbytes < kStreamBytes) {
    std::memcpy(out, in, nbytes);
    return;
  }
  parallel_for(static_cast<int64_t>(nbytes), kGrainBytes, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(CopyStreaming)(out + begin, in + begin, static_cast<size_t>(end - begin));
  });
}

}  // namespace zerorun
#endif  // HWY_ONCE
