#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "device/cpu/cpu_stream.h"
#include "zerorun/device.h"
#include "zerorun/tensor.h"

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

// Overwrites tensors of a device so that their old bytes can be brought back. Old bytes that are
// all zero, as optimizer states are before the first step, take no memory.
class UndoLog {
 public:
  // Returns host memory for old bytes, or an empty span if there is none yet.
  using Take = std::function<std::span<std::byte>(size_t nbytes)>;
  // The memory must outlive the log.
  UndoLog(Device& device, Take take) : device_(device), take_(std::move(take)) {}

  // Keeps what is in host memory, which may change then. Returns false if there is no memory for it
  // yet. Safe to use from several threads for different tensors, as write() is.
  bool keep(std::byte* to, size_t nbytes);
  // Copies `bytes`, of host memory, to `to`, and keeps what was there. Returns false and changes
  // nothing if there is no memory for that yet.
  bool write(std::byte* to, std::span<const std::byte> bytes);
  // Brings back all bytes that were kept.
  void undo();

 private:
  struct Overwritten {
    std::byte* to = nullptr;
    const std::byte* old = nullptr;  // null: zeros
    size_t nbytes = 0;
  };

  // `old`: what is at `to`.
  bool keep(std::byte* to, std::span<const std::byte> old);
  bool write_to_gpu(std::byte* to, std::span<const std::byte> bytes);

  Device& device_;
  const Take take_;
  std::mutex gpu_mutex_;  // of `staging_`
  Buffer staging_;        // pinned: old bytes of a GPU
  std::mutex mutex_;      // of `overwritten_`
  std::deque<Overwritten> overwritten_;
};

}  // namespace zerorun
