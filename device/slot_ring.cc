#include "device/slot_ring.h"

#include <utility>

#include "core/check.h"

namespace zerorun {

void SlotRing::add(TensorView memory) { slots_.push_back({memory, {}, {}}); }

void SlotRing::add(Buffer memory) {
  slots_.emplace_back();
  replace(slots_.size() - 1, std::move(memory));
}

size_t SlotRing::take(Stream& stream) {
  stream.wait(slots_.at(next_).free);
  last_ = next_;
  next_ = (next_ + 1) % slots_.size();
  return last_;
}

TensorView SlotRing::view(size_t slot, int64_t numel, DType dtype) const {
  const TensorView view{slots_.at(slot).memory.data, numel, dtype};
  ZR_CHECK(view.nbytes() <= nbytes(slot), "{} bytes are staged in slots of {}", view.nbytes(),
           nbytes(slot));
  return view;
}

void SlotRing::release(size_t slot, Event free_after) {
  slots_.at(slot).free = std::move(free_after);
}

void SlotRing::replace(size_t slot, Buffer memory) {
  Slot& replaced = slots_.at(slot);
  replaced.owned = std::move(memory);
  replaced.memory = {replaced.owned.data(), static_cast<int64_t>(replaced.owned.nbytes()),
                     DType::uint8};
}

}  // namespace zerorun
