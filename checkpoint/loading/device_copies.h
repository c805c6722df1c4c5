#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "zerorun/device.h"
#include "zerorun/tensor.h"

namespace zerorun {

// Copies bytes between a GPU and the host in order, through blocks of pinned memory: the GPU copies
// one block while the host works on another. Bytes that are in host memory are passed without a
// copy.
class DeviceCopies {
 public:
  static constexpr size_t kBlockNbytes = size_t{8} << 20;

  explicit DeviceCopies(Device& device) : device_(device) {}
  // Waits for copies in progress.
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  // Calls use(offset, bytes) with all bytes of the view in order, at the latest during the next
  // call of download() or finish(). `on_host`: the view is in host memory, whatever the device.
  using Use = std::function<void(uint64_t offset, std::span<const std::byte> bytes)>;
  void download(TensorView view, bool on_host, const Use& use);
  // Calls fill(offset, bytes) to get all bytes of the view in order. Work submitted to the device's
  // inline stream after this call sees them.
  using Fill = std::function<void(uint64_t offset, std::span<std::byte> bytes)>;
  void upload(TensorView view, bool on_host, const Fill& fill);
  // Calls `use` for all bytes that were not passed yet.
  void finish();

 private:
  struct Block {
    Buffer memory;
    Event copied;
    size_t nbytes = 0;  // bytes copied from the device
    uint64_t offset = 0;
    Use use;  // empty: the bytes were used, or are copied to the device
  };

  // The oldest block, free for the next copy.
  Block& next_block();
  static void complete(Block& block);

  Device& device_;
  std::array<Block, 2> blocks_;
  size_t next_ = 0;
};

}  // namespace zerorun
