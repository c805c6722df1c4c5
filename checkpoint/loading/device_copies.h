#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "zerorun/device.h"
#include "zerorun/tensor.h"

namespace zerorun {

// Blocks of pinned memory by which bytes pass between a GPU and the host, in order: the GPU copies
// one while the host works on another. What is in host memory needs none, and its bytes are given
// as they are.
class DeviceCopies {
 public:
  static constexpr size_t kBlockNbytes = size_t{8} << 20;

  explicit DeviceCopies(Device& device) : device_(device) {}
  // Waits for what is under way.
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  // Calls use(offset, bytes) with the view's bytes, in order, before the next call of download or
  // finish returns. `on_host`: the view is in memory of the host, whatever the device.
  using Use = std::function<void(uint64_t offset, std::span<const std::byte> bytes)>;
  void download(TensorView view, bool on_host, const Use& use);
  // Calls fill(offset, bytes) to get the view's bytes, in order. They are on the device, for its
  // inline stream, when this returns.
  using Fill = std::function<void(uint64_t offset, std::span<std::byte> bytes)>;
  void upload(TensorView view, bool on_host, const Fill& fill);
  // Uses what has come.
  void finish();

 private:
  struct Block {
    Buffer memory;
    Event copied;
    size_t nbytes = 0;  // that come from the device
    uint64_t offset = 0;
    Use use;  // of them; none: they are used, or go to the device
  };

  // Calls visit(offset, chunk) with pieces of the view, each of at most a block.
  template <typename Visit>
  static void for_each_chunk(TensorView view, const Visit& visit);
  // The oldest block, free for the next copy.
  Block& next_block();
  static void complete(Block& block);

  Device& device_;
  std::array<Block, 2> blocks_;
  size_t next_ = 0;
};

}  // namespace zerorun
