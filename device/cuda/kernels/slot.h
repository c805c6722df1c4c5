#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/convert.h"
#include "device/cuda/kernels/vector.h"
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

}  // namespace zerorun::cuda
