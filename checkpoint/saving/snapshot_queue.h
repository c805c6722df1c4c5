#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>

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
  };
  // Every piece begins at a multiple of this.
  static constexpr size_t kAlignment = 64;
  // Memory that the pieces of a tensor of `nbytes` take.
  static constexpr uint64_t memory_for(uint64_t nbytes) {
    return (nbytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  // The memory's size is a multiple of kAlignment, and not 0.
  explicit SnapshotQueue(std::span<std::byte> memory) : memory_(memory) {}

  // For the thread that copies. Waits for room; at least kAlignment and at most `wanted` bytes,
  // fewer only at a multiple of kAlignment. Nothing once the queue is closed.
  std::span<std::byte> reserve(size_t wanted);
  // The part that was reserved last is complete.
  void push(const Piece& piece);
  // No more pieces come.
  void finish();

  // For the thread that writes: waits for the next piece; nothing when there will be none.
  std::optional<Piece> front();
  // The piece is written: its memory is free again.
  void pop();

  // For any thread, when the other one shall not wait any more: pieces that are there are dropped.
  void close();

 private:
  void start_draining();

  std::span<std::byte> memory_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece> pieces_;
  uint64_t begin_ = 0;   // of the oldest piece; positions count on and on
  uint64_t end_ = 0;     // of the last one
  bool drains_ = false;  // the second thread's turn has come
  bool finished_ = false;
  bool closed_ = false;
};

}  // namespace zerorun
