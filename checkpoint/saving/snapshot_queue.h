#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <vector>

#include "zerorun/device.h"

namespace zerorun {

// Pieces of tensors on their way from the thread that copies them to the one that writes them, in
// one block of memory that is used round and round. The first thread waits where it is full; the
// second until then, or until all pieces are there, so that it does not take memory's and the
// disk's time while the training waits for the first.
class SnapshotQueue {
 public:
  struct Piece {
    size_t tensor = 0;
    uint64_t offset = 0;  // within the tensor
    std::span<const std::byte> bytes;
    Event copied{};  // they are there from then on
  };
  // A piece begins in memory where it does in the file, but for a multiple of this, as disks ask of
  // memory that they take directly. Pieces that come in the file's order lie side by side.
  static constexpr size_t kAlignment = 512;
  // Memory that a tensor of `nbytes` takes at most.
  static constexpr uint64_t memory_for(uint64_t nbytes) { return nbytes + kAlignment - 1; }

  // The memory's size is a multiple of kAlignment, and not 0.
  explicit SnapshotQueue(std::span<std::byte> memory) : memory_(memory) {}

  // For the thread that copies. Waits for room for bytes of the file from `place` on: at most
  // `wanted`, fewer only up to a multiple of kAlignment in the file. Nothing once the queue is
  // closed.
  std::span<std::byte> reserve(size_t wanted, uint64_t place);
  // The part that was reserved last is complete.
  void push(const Piece& piece);
  // No more pieces come.
  void finish();

  // For the thread that writes: waits for the next pieces, and gives up to kBatchNbytes; none when
  // there will be none.
  std::vector<Piece> take();
  // What was taken is written: its memory is free again.
  void release();

  // For any thread, when the other one shall not wait any more: pieces that are there are dropped.
  void close();

 private:
  struct Stored {
    Piece piece;
    uint64_t end = 0;  // position
  };
  static constexpr size_t kBatchNbytes = size_t{16} << 20;

  void start_draining();
  std::span<std::byte> room(size_t wanted, uint64_t place);

  std::span<std::byte> memory_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Stored> pieces_;
  size_t taken_ = 0;       // of them
  uint64_t begin_ = 0;     // of the oldest piece; positions count on and on
  uint64_t end_ = 0;       // of the last one
  uint64_t reserved_ = 0;  // where the next one begins
  bool drains_ = false;    // the second thread's turn has come
  bool finished_ = false;
  bool closed_ = false;
};

}  // namespace zerorun
