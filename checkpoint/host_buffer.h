#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "zerorun/device.h"
#include "zerorun/tensor.h"

namespace zerorun {

// A small block of host memory through which bytes pass between files and a device, so that a save
// or load needs no more memory than this whatever the size of the model. What is in host memory
// does not need it: its bytes are given as they are.
class HostBuffer {
 public:
  explicit HostBuffer(Device& device) : device_(device), bytes_(kNbytes) {}

  // Calls use(offset, bytes) with the view's bytes, in order, a chunk at a time.
  template <typename Use>
  void download(TensorView view, const Use& use) {
    for_each_chunk(view, [&](uint64_t offset, TensorView chunk, std::span<std::byte> host) {
      if (device_.is_host()) return use(offset, std::span<const std::byte>(bytes_of(chunk)));
      device_.download(device_.inline_stream(), chunk, host.data());
      device_.inline_stream().synchronize();
      use(offset, std::span<const std::byte>(host));
    });
  }
  // Calls fill(offset, bytes) to get the view's bytes, in order, a chunk at a time.
  template <typename Fill>
  void upload(TensorView view, const Fill& fill) {
    for_each_chunk(view, [&](uint64_t offset, TensorView chunk, std::span<std::byte> host) {
      if (device_.is_host()) return fill(offset, bytes_of(chunk));
      fill(offset, host);
      device_.upload(device_.inline_stream(), host.data(), chunk);
      device_.inline_stream().synchronize();
    });
  }

 private:
  static constexpr size_t kNbytes = size_t{1} << 20;  // stays in the cache between two uses

  static std::span<std::byte> bytes_of(TensorView view) { return {view.data, view.nbytes()}; }

  template <typename Action>
  void for_each_chunk(TensorView view, const Action& action) {
    const size_t element = size_of(view.dtype);
    const auto step = static_cast<int64_t>(kNbytes / element);
    for (int64_t begin = 0; begin < view.numel; begin += step) {
      const TensorView chunk = view.slice(begin, std::min(step, view.numel - begin));
      action(static_cast<uint64_t>(begin) * element, chunk,
             std::span(bytes_).first(chunk.nbytes()));
    }
  }

  Device& device_;
  std::vector<std::byte> bytes_;
};

}  // namespace zerorun
