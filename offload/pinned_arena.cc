#include "offload/pinned_arena.h"

#include <cstring>

#include "core/check.h"

namespace zerorun {

PinnedArena::PinnedArena(Device& device, size_t nbytes) {
  if (nbytes == 0) return;
  buffer_ = device.allocate_pinned(nbytes);
  // Touching every page now finds out now whether they are there.
  std::memset(buffer_.data(), 0, nbytes);
}

TensorView PinnedArena::take(int64_t numel, DType dtype) {
  const size_t nbytes = nbytes_of(numel, dtype);
  ZR_CHECK(taken_ + nbytes <= buffer_.nbytes(), "{} bytes more than the {} of the arena are taken",
           taken_ + nbytes - buffer_.nbytes(), buffer_.nbytes());
  const TensorView view = view_of(buffer_, dtype, numel, taken_);
  taken_ += nbytes;
  return view;
}

}  // namespace zerorun
