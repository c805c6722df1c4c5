#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "os/host_limits.h"
#include "zerorun/device.h"
#include "zerorun/tensor.h"

namespace zerorun {

// All pinned host memory of an engine: of exactly the size that was computed beforehand, from which
// views are taken. It is one block up to kLargestBlock, beyond that several, and larger by what is
// left at the end of each: no view lies in two. Nothing is allocated after the last view was taken,
// or freed.
class PinnedArena {
 public:
  // NVIDIA's drivers from 580 on refuse 512 GiB and more in one call, however much is free: their
  // table of pages, 16 bytes for 4 KiB, would exceed what Linux gives at once
  // (NVIDIA/open-gpu-kernel-modules, pull request 1234).
  static constexpr size_t kLargestBlock = size_t{256} << 30;

  // Allocates the first block, zero-filled; of CPU ranks, pages come when they are written.
  PinnedArena(Device& device, size_t nbytes, size_t largest_block = kLargestBlock);

  // Takes the next view. Throws InternalError beyond the size of the arena.
  TensorView take(int64_t numel, DType dtype);
  size_t nbytes() const { return nbytes_; }
  size_t taken() const { return taken_; }

  // The bytes of the arena that `numel` elements take.
  static constexpr size_t nbytes_of(int64_t numel, DType dtype) {
    constexpr size_t kAlignment = 64;
    const size_t nbytes = static_cast<size_t>(numel) * size_of(dtype);
    return (nbytes + kAlignment - 1) / kAlignment * kAlignment;
  }

 private:
  void add_block(size_t most);  // bytes of views

  Device& device_;
  const size_t nbytes_;
  const size_t largest_block_;
  std::vector<Buffer> blocks_;
  size_t taken_ = 0;
  size_t taken_of_last_ = 0;  // of the last block
};

// Throws ConfigError if `limits` do not allow `nbytes` bytes for each of `ranks` ranks on this
// host. The error names the limit, the missing bytes, and `purpose`.
void check_host_memory(const HostLimits& limits, size_t nbytes, int ranks,
                       std::string_view purpose);
// Advice for the user if `limits` do not allow each of `ranks` ranks to lock `nbytes` bytes;
// otherwise empty.
std::string locking_advice(const HostLimits& limits, size_t nbytes, int ranks);

}  // namespace zerorun
