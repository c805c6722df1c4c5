#include "zero/storage/padding.h"

namespace zerorun {

void clear_padding(const Bucket& bucket, int64_t begin, TensorView part, Device& device,
                   Stream& stream) {
  int64_t end = begin;  // of the parameter before
  const auto clear_to = [&](int64_t offset) {
    if (offset > end) device.fill(stream, part.slice(end - begin, offset - end), 0.0F);
  };
  for (const Interval& interval : bucket.layout.intervals(begin, begin + part.numel)) {
    clear_to(interval.offset);
    end = interval.offset + interval.numel;
  }
  clear_to(begin + part.numel);
}

}  // namespace zerorun
