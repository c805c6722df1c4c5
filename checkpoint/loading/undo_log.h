#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <vector>

#include "zerorun/device.h"
#include "zerorun/tensor.h"

namespace zerorun {

// Overwrites tensors of a device so that their old bytes can be brought back. Old bytes that are
// all zero, as optimizer states are before the first step, take no memory.
class UndoLog {
 public:
  // Keeps at most `room` bytes, in host memory.
  UndoLog(Device& device, uint64_t room) : device_(device), room_(room) {}

  // Copies `bytes`, of host memory, to `to`. Returns false and changes nothing if there is no room
  // to keep the old bytes. Safe to use from several threads for different tensors.
  bool write(std::byte* to, std::span<const std::byte> bytes);
  // Brings back all bytes that were overwritten.
  void undo();
  // Forgets the old bytes and frees their memory.
  void clear();

 private:
  struct Overwritten {
    std::byte* to = nullptr;
    const std::byte* old = nullptr;  // null: zeros
    size_t nbytes = 0;
  };
  static constexpr size_t kSlabNbytes = size_t{16} << 20;

  // Memory for old bytes; empty if there is no room.
  std::span<std::byte> take(size_t nbytes);
  bool keep(std::byte* to, std::span<const std::byte> old);
  bool write_to_gpu(std::byte* to, std::span<const std::byte> bytes);

  Device& device_;
  const uint64_t room_;
  std::mutex mutex_;      // of the members below
  std::mutex gpu_mutex_;  // of `staging_`
  Buffer staging_;        // pinned: old bytes of a GPU
  std::vector<Buffer> slabs_;
  std::span<std::byte> free_;  // at the end of the last slab
  uint64_t taken_ = 0;
  std::deque<Overwritten> overwritten_;
};

}  // namespace zerorun
