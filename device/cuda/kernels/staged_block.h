#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cstdint>
#include <tuple>
#include <type_traits>

#include "amp/stochastic_rounding.h"
#include "device/block8.h"
#include "device/convert.h"
#include "device/cuda/kernels/launch.h"
#include "zerorun/device.h"
#include "zerorun/tensor.h"

namespace zerorun::cuda {

// A TensorView as a kernel's parameter.
struct View {
  View() = default;
  View(const TensorView& view) : data(view.data), dtype(view.dtype) {}  // NOLINT: a conversion

  template <typename T>
  __device__ T* as() const {
    return static_cast<T*>(data);
  }

  void* data = nullptr;
  DType dtype = DType::fp32;
};

// The dtype is tested at each access. All threads take the same branch, and one kernel per update
// rule is enough, instead of one for each combination of dtypes.
__device__ inline float load_as_float(const View& view, int64_t i) {
  switch (view.dtype) {
    case DType::bf16:
      return widen(view.as<Bf16>()[i]);
    case DType::fp16:
      return widen(view.as<Fp16>()[i]);
    default:
      return view.as<float>()[i];
  }
}

__device__ inline void store_nearest(float value, const View& view, int64_t i) {
  switch (view.dtype) {
    case DType::bf16:
      return narrow(value, view.as<Bf16>() + i);
    case DType::fp16:
      return narrow(value, view.as<Fp16>() + i);
    default:
      view.as<float>()[i] = value;
  }
}

inline constexpr int kVector = 4;
using Floats = Vector<float, kVector>;

// A vector of neighbouring elements, which begins at `begin` and of which the first `count` exist.
// Tensors that are not `aligned` there are read and written one element at a time.
struct Slot {
  __device__ bool has(int k) const { return k < count; }
  __device__ bool is_vector() const { return aligned && has(kVector - 1); }

  // Elements that do not exist are read as 0.
  template <typename T>
  __device__ Vector<T, kVector> load(const View& view) const {
    const T* const from = view.as<const T>() + begin;
    if (is_vector()) return load_vector<T, kVector>(from);
    Vector<T, kVector> vector = {};
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      if (has(k)) vector.at[k] = from[k];
    }
    return vector;
  }

  template <typename T>
  __device__ void store(const Vector<T, kVector>& vector, const View& view) const {
    T* const to = view.as<T>() + begin;
    if (is_vector()) return store_vector(vector, to);
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      if (has(k)) to[k] = vector.at[k];
    }
  }

  int64_t begin;
  int count;
  bool aligned;
};

template <typename T>
__device__ Floats load_widened(const View& view, const Slot& slot) {
  const auto vector = slot.load<T>(view);
  Floats floats;
#pragma unroll
  for (int k = 0; k < kVector; ++k) floats.at[k] = widen(vector.at[k]);
  return floats;
}

__device__ inline Floats load_floats(const View& view, const Slot& slot) {
  switch (view.dtype) {
    case DType::bf16:
      return load_widened<Bf16>(view, slot);
    case DType::fp16:
      return load_widened<Fp16>(view, slot);
    default:
      return slot.load<float>(view);
  }
}

template <typename T>
__device__ void store_narrowed(const Floats& floats, const View& view, const Slot& slot) {
  Vector<T, kVector> vector;
#pragma unroll
  for (int k = 0; k < kVector; ++k) narrow(floats.at[k], &vector.at[k]);
  slot.store(vector, view);
}

__device__ inline void store_floats(const Floats& floats, const View& view, const Slot& slot) {
  switch (view.dtype) {
    case DType::bf16:
      return store_narrowed<Bf16>(floats, view, slot);
    case DType::fp16:
      return store_narrowed<Fp16>(floats, view, slot);
    default:
      slot.store(floats, view);
  }
}

// A warp handles kStateBlock elements, in groups of which each thread has one vector.
inline constexpr int kGroups = static_cast<int>(kStateBlock / StochasticRounding::kGroup);
inline constexpr int kColumns = static_cast<int>(StochasticRounding::kColumns);
static_assert(kWarp * kVector == StochasticRounding::kGroup && kGroups * kColumns == kWarp);

// The random numbers of a warp's block. Each thread draws the numbers of one column of a group, and
// uses those of neighbouring columns of the row in which it has elements.
class WarpRandom {
 public:
  // All threads of the warp. `element`: of the parameter, at the block's begin.
  __device__ void draw(const StochasticRounding& rounding, int64_t element, int lane) {
    const int group = lane / kColumns;
    const int column = lane % kColumns;
    Philox::Block counter = rounding.counter(element / StochasticRounding::kGroup + group);
    counter[0] += static_cast<uint32_t>(column);
    const Philox::Block words = Philox::block(counter, rounding.key());
    __syncwarp();  // all threads have used the previous numbers
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      words_[group][word].at[column] = words[static_cast<size_t>(word)];
    }
    __syncwarp();
  }

  // Returns 16 random bits for each element of the thread's vector.
  __device__ Vector<uint32_t, kVector> bits(int group, int lane) const {
    const int row = lane * kVector / kColumns;
    auto random =
        load_vector<uint32_t, kVector>(words_[group][row / 2].at + lane * kVector % kColumns);
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      random.at[k] = row % 2 == 0 ? random.at[k] & 0xffffU : random.at[k] >> 16;
    }
    return random;
  }

 private:
  static constexpr int kWords = static_cast<int>(std::tuple_size_v<Philox::Block>);
  Vector<uint32_t, kColumns> words_[kGroups][kWords];
};

// A warp's block of one tensor; each thread has one vector of every group.
class Staged {
 public:
  __device__ Staged(int64_t begin, int64_t end, bool aligned, int lane)
      : begin_(begin),
        count_(static_cast<int>(end - begin < kStateBlock ? end - begin : kStateBlock) -
               lane * kVector),
        aligned_(aligned && begin % kVector == 0),
        lane_(lane) {}

  __device__ Slot slot(int group) const {
    constexpr int kGroup = StochasticRounding::kGroup;
    return {begin_ + group * kGroup + lane_ * kVector, count_ - group * kGroup, aligned_};
  }

  __device__ Floats load(const View& view, const View& scales, bool is_signed, int group) const {
    if (view.dtype != DType::uint8) return load_floats(view, slot(group));
    const float scale = scales.as<float>()[begin_ / kStateBlock];
    const auto codes = slot(group).load<uint8_t>(view);
    Floats floats;
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      floats.at[k] = Block8{is_signed}.decode(codes.at[k], scale);
    }
    return floats;
  }

  // Called by all threads of the warp. Draws the random numbers for the store() of a group that is
  // rounded stochastically. `element` is the index within the parameter of the element at `begin`.
  __device__ void draw(const View& view, const StochasticRounding& rounding, int64_t element,
                       WarpRandom& random) const {
    if (view.dtype == DType::bf16 || view.dtype == DType::fp16) {
      random.draw(rounding, element, lane_);
    }
  }

  __device__ void store(const Floats& values, const View& view, int group,
                        const WarpRandom& random) const {
    switch (view.dtype) {
      case DType::bf16:
        return round<Bf16>(values, view, group, random);
      case DType::fp16:
        return round<Fp16>(values, view, group, random);
      default:
        slot(group).store(values, view);
    }
  }

  // All threads of the warp.
  __device__ void store(const Floats* values, const View& view, const View& scales, bool is_signed,
                        const StochasticRounding& rounding, int64_t element,
                        WarpRandom& random) const {
    if (view.dtype == DType::uint8) return encode(values, view, scales, Block8{is_signed});
    draw(view, rounding, element, random);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) store(values[group], view, group, random);
  }

 private:
  __device__ void encode(const Floats* values, const View& view, const View& scales,
                         Block8 code) const {
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kGroups * kVector; ++i) {
      const float value = values[i / kVector].at[i % kVector];
      const uint32_t magnitude = std::bit_cast<uint32_t>(value) & 0x7fffffffU;
      largest = magnitude > largest ? magnitude : largest;
    }
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      const uint32_t other = __shfl_xor_sync(kWholeWarp, largest, distance);
      largest = other > largest ? other : largest;
    }
    const float scale = Block8::scale_of_magnitude(largest);
    if (lane_ == 0) scales.as<float>()[begin_ / kStateBlock] = scale;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      Vector<uint8_t, kVector> codes;
#pragma unroll
      for (int k = 0; k < kVector; ++k) codes.at[k] = code.encode(values[group].at[k], scale);
      slot(group).store(codes, view);
    }
  }

  template <typename T>
  __device__ void round(const Floats& values, const View& view, int group,
                        const WarpRandom& random) const {
    const auto bits = random.bits(group, lane_);
    Vector<T, kVector> rounded;
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      if constexpr (std::is_same_v<T, Bf16>) {
        rounded.at[k] = round_to_bf16(values.at[k], bits.at[k]);
      } else {
        rounded.at[k] = round_to_fp16(values.at[k], bits.at[k]);
      }
    }
    slot(group).store(rounded, view);
  }

  int64_t begin_;
  int count_;  // elements from the thread's first vector to the end of the block
  bool aligned_;
  int lane_;
};

}  // namespace zerorun::cuda
