#pragma once

#include "zero/partition/bucket.h"
#include "zerorun/device.h"

namespace zerorun {

// Sets the padding to zero in `part` of a bucket, which begins at element `begin`. Padding may have
// any values otherwise, and would change the scale of a quantized block.
void clear_padding(const Bucket& bucket, int64_t begin, TensorView part, Device& device,
                   Stream& stream);

}  // namespace zerorun
