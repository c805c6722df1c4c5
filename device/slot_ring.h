#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/check.h"
#include "zerorun/device.h"
#include "zerorun/tensor.h"

namespace zerorun {

// Slots of memory that are used in turn. A slot becomes free with an event; the stream of the next
// user waits for that event.
class SlotRing {
 public:
  // Adds a slot. A view's memory must outlive the ring; a Buffer becomes property of the ring.
  void add(TensorView memory) { slots_.push_back({memory, {}, {}}); }
  void add(Buffer memory) {
    slots_.emplace_back();
    replace(slots_.size() - 1, std::move(memory));
  }
  size_t size() const { return slots_.size(); }

  // Returns the next slot and makes `stream` wait until it is free.
  size_t take(Stream& stream) {
    stream.wait(slots_.at(next_).free);
    last_ = next_;
    next_ = (next_ + 1) % slots_.size();
    return last_;
  }
  // Returns the slot that was taken last.
  size_t last() const { return last_; }
  // Returns a view of the first elements of the slot. Throws InternalError if the slot is smaller.
  TensorView view(size_t slot, int64_t numel, DType dtype) const {
    const TensorView view{slots_.at(slot).memory.data, numel, dtype};
    ZR_CHECK(view.nbytes() <= nbytes(slot), "{} bytes are staged in slots of {}", view.nbytes(),
             nbytes(slot));
    return view;
  }
  void release(size_t slot, Event free_after) { slots_.at(slot).free = std::move(free_after); }

  size_t nbytes(size_t slot) const { return slots_.at(slot).memory.nbytes(); }
  // Blocks until the slot is free.
  void synchronize(size_t slot) const { slots_.at(slot).free.synchronize(); }
  // Replaces the memory of a free slot.
  void replace(size_t slot, Buffer memory) {
    const TensorView all = view_of(memory, DType::uint8, static_cast<int64_t>(memory.nbytes()));
    slots_.at(slot).memory = all;
    slots_.at(slot).owned = std::move(memory);
  }

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
