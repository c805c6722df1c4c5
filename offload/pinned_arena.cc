#include "offload/pinned_arena.h"

#include <cstring>

#include "core/check.h"
#include "core/parallel.h"

namespace zerorun {

PinnedArena::PinnedArena(Device& device, size_t nbytes) {
  if (nbytes == 0) return;
  buffer_ = device.allocate_pinned(nbytes);
  // Touching every page now finds out now whether they are there.
  constexpr int64_t kGrain = int64_t{4} << 20;
  parallel_for(static_cast<int64_t>(nbytes), kGrain, [this](int64_t begin, int64_t end) {
    std::memset(buffer_.data() + begin, 0, static_cast<size_t>(end - begin));
  });
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
