#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "device/cpu/cpu_stream.h"
#include "zerorun/device.h"

namespace zerorun {

// Host memory that a thread gets from the system before it is used, because some systems provide
// memory more slowly than a disk reads.
class SpareMemory {
 public:
  // At most `limit` bytes.
  SpareMemory(Device& host, uint64_t limit);
  ~SpareMemory();
  SpareMemory(const SpareMemory&) = delete;
  SpareMemory& operator=(const SpareMemory&) = delete;

  // Returns memory that the system has provided, as long as this object lives; empty if it has not
  // yet provided enough. Does not wait. Safe to use from several threads.
  std::span<std::byte> take(size_t nbytes);

 private:
  static constexpr size_t kSlabNbytes = size_t{4} << 20;
  static constexpr size_t kAhead = 4;  // slabs

  void provide();
  // Waits until another slab is wanted; false if none is.
  bool is_wanted();

  Device& host_;
  uint64_t left_;  // of the limit
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_closed_ = false;
  std::deque<Buffer> ready_;
  std::vector<Buffer> used_;
  std::span<std::byte> free_;  // at the end of the last used one
  std::unique_ptr<CpuStream> thread_;
};

}  // namespace zerorun
