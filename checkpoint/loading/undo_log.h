#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <utility>

#include "zerorun/device.h"
#include "zerorun/tensor.h"

namespace zerorun {

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
