#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "os/host_limits.h"
#include "zerorun/device.h"
#include "zerorun/tensor.h"

namespace zerorun {

// All pinned host memory of an engine: one block of exactly the size that was computed beforehand,
// from which views are taken. Nothing is allocated or freed after construction.
class PinnedArena {
 public:
  // Allocates the block, zero-filled; of CPU ranks, pages come when they are written.
  PinnedArena(Device& device, size_t nbytes);

  // Takes the next view. Throws InternalError beyond the size of the arena.
  TensorView take(int64_t numel, DType dtype);
  size_t nbytes() const { return buffer_.nbytes(); }
  size_t taken() const { return taken_; }

  // The bytes of the arena that `numel` elements take.
  static constexpr size_t nbytes_of(int64_t numel, DType dtype) {
    constexpr size_t kAlignment = 64;
    const size_t nbytes = static_cast<size_t>(numel) * size_of(dtype);
    return (nbytes + kAlignment - 1) / kAlignment * kAlignment;
  }

 private:
  Buffer buffer_;
  size_t taken_ = 0;
};

// Throws ConfigError if `limits` do not allow `nbytes` bytes for each of `ranks` ranks on this
// host. The error names the limit, the missing bytes, and `purpose`.
void check_host_memory(const HostLimits& limits, size_t nbytes, int ranks,
                       std::string_view purpose);
// Advice for the user if `limits` do not allow each of `ranks` ranks to lock `nbytes` bytes;
// otherwise empty.
std::string locking_advice(const HostLimits& limits, size_t nbytes, int ranks);

}  // namespace zerorun
