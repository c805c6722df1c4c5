#pragma once

#include <cstdint>
#include <vector>

#include "zerorun/device.h"
#include "zerorun/tensor.h"

namespace zerorun {

// Slots of memory that are used in turn. A slot becomes free with an event; the stream of the next
// user waits for that event.
class SlotRing {
 public:
  // Adds a slot. A view's memory must outlive the ring; a Buffer becomes property of the ring.
  void add(TensorView memory);
  void add(Buffer memory);
  size_t size() const { return slots_.size(); }

  // Returns the next slot and makes `stream` wait until it is free.
  size_t take(Stream& stream);
  // Returns the slot that was taken last.
  size_t last() const { return last_; }
  // Returns a view of the first elements of the slot. Throws InternalError if the slot is smaller.
  TensorView view(size_t slot, int64_t numel, DType dtype) const;
  void release(size_t slot, Event free_after);

  size_t nbytes(size_t slot) const { return slots_.at(slot).memory.nbytes(); }
  // Blocks until the slot is free.
  void synchronize(size_t slot) const { slots_.at(slot).free.synchronize(); }
  // Replaces the memory of a free slot.
  void replace(size_t slot, Buffer memory);

 private:
  struct Slot {
    TensorView memory;
    Buffer owned;
    Event free;
  };
  std::vector<Slot> slots_;
  size_t last_ = 0;
  size_t next_ = 0;
};

}  // namespace zerorun
