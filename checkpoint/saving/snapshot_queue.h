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

// A queue of parts of tensors between the thread that copies them and the thread that writes them,
// in one block of memory that is used as a ring. The copying thread waits while it is full. The
// writing thread starts when the memory is full or all pieces are there, so that it does not
// compete for memory and disk while training waits for the copies.
class SnapshotQueue {
 public:
  struct Piece {
    size_t tensor = 0;
    uint64_t offset = 0;  // within the tensor
    std::span<const std::byte> bytes;
    Event copied{};  // the bytes are complete after this event
  };
  // The address of a piece is congruent to its position in the file modulo kAlignment, as direct
  // I/O requires. Pieces that come in the order of the file are adjacent in memory.
  static constexpr size_t kAlignment = 512;
  // The maximum bytes of memory for a tensor of `nbytes` bytes.
  static constexpr uint64_t memory_for(uint64_t nbytes) { return nbytes + kAlignment - 1; }

  // The size of `memory` is a positive multiple of kAlignment.
  explicit SnapshotQueue(std::span<std::byte> memory) : memory_(memory) {}

  // For the copying thread. Waits for memory for bytes of the file from `place` on. Returns at most
  // `wanted` bytes; fewer only up to a multiple of kAlignment in the file; none after close().
  std::span<std::byte> reserve(size_t wanted, uint64_t place);
  // Adds the piece in the memory that was reserved last.
  void push(const Piece& piece);
  // Announces that no more pieces come.
  void finish();

  // For the writing thread. Waits for the next pieces and returns up to kBatchNbytes of them; none
  // after the last one.
  std::vector<Piece> take();
  // Frees the memory of the pieces that were taken, after they were written.
  void release();

  // Ends all waits and drops the pieces in the queue. For any thread.
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
  size_t taken_ = 0;       // pieces taken
  uint64_t begin_ = 0;     // position of the oldest piece; positions never wrap
  uint64_t end_ = 0;       // end of the last piece
  uint64_t reserved_ = 0;  // begin of the next piece
  bool drains_ = false;    // the writing thread has started
  bool finished_ = false;
  bool closed_ = false;
};

}  // namespace zerorun
