#pragma once

#include <cstdint>
#include <vector>

#include "zerorun/device.h"
#include "zerorun/tensor.h"

namespace zerorun {

// Slots of memory that are used in turn. Each is free again after an event, which the stream of the
// next user waits for.
class SlotRing {
 public:
  // The memory must outlive the ring, or is the ring's.
  void add(TensorView memory);
  void add(Buffer memory);
  size_t size() const { return slots_.size(); }

  // Takes the next slot; `stream` waits until it is free.
  size_t take(Stream& stream);
  // The slot that was taken last.
  size_t last() const { return last_; }
  // A view of the slot's first elements. Throws InternalError when the slot is smaller.
  TensorView view(size_t slot, int64_t numel, DType dtype) const;
  void release(size_t slot, Event free_after);

  size_t nbytes(size_t slot) const { return slots_.at(slot).memory.nbytes(); }
  // Blocks until the slot is free.
  void synchronize(size_t slot) const { slots_.at(slot).free.synchronize(); }
  // Gives a slot that is free other memory.
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
