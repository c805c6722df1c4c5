#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <type_traits>
#include <utility>

#include "zerorun/dtype.h"

namespace zerorun {

// Move-only owner of a block of memory. It contains the function that frees the memory, so it can
// own device memory, shared memory and memory of a framework's allocator alike.
class Buffer {
 public:
  Buffer() = default;
  Buffer(void* data, size_t nbytes, std::function<void()> free)
      : data_(static_cast<std::byte*>(data)), nbytes_(nbytes), free_(std::move(free)) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~Buffer() {
    if (free_) free_();
  }

  std::byte* data() const { return data_; }
  size_t nbytes() const { return nbytes_; }
  explicit operator bool() const { return data_ != nullptr; }
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(nbytes_, other.nbytes_);
    free_.swap(other.free_);
  }

 private:
  std::byte* data_ = nullptr;
  size_t nbytes_ = 0;
  std::function<void()> free_;
};

// Non-owning flat view of `numel` elements. The Buffer it points into must outlive it.
struct TensorView {
  std::byte* data = nullptr;
  int64_t numel = 0;
  DType dtype = DType::fp32;

  size_t nbytes() const { return static_cast<size_t>(numel) * size_of(dtype); }
  bool empty() const { return numel == 0; }
  TensorView slice(int64_t begin, int64_t count) const {
    return {data + static_cast<size_t>(begin) * size_of(dtype), count, dtype};
  }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
  template <typename T>
  std::span<T> span() const {
    return {as<T>(), static_cast<size_t>(numel)};
  }
};

// Returns a view of `numel` elements of `buffer` that starts at byte `offset`.
inline TensorView view_of(const Buffer& buffer, DType dtype, int64_t numel, size_t offset = 0) {
  return {buffer.data() + offset, numel, dtype};
}

template <typename T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>) return DType::fp32;
  if constexpr (std::is_same_v<T, Bf16>) return DType::bf16;
  if constexpr (std::is_same_v<T, Fp16>) return DType::fp16;
  if constexpr (std::is_same_v<T, int64_t>) return DType::int64;
  if constexpr (std::is_same_v<T, uint8_t>) return DType::uint8;
}

// Returns a view of host memory, which the caller has to keep alive.
template <typename T>
TensorView view_of(std::span<T> values) {
  return {reinterpret_cast<std::byte*>(values.data()), static_cast<int64_t>(values.size()),
          dtype_of<T>()};
}

}  // namespace zerorun
