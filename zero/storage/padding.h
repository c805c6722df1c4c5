#pragma once

#include "zero/partition/bucket.h"
#include "zerorun/device.h"

namespace zerorun {

// Makes the padding zero in `part` of a bucket, which begins at `begin`. It may hold anything, and
// a block that is quantized has one scale for all that is in it.
void clear_padding(const Bucket& bucket, int64_t begin, TensorView part, Device& device,
                   Stream& stream);

}  // namespace zerorun
