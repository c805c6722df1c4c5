#pragma once

#include "zerorun/communicator.h"

namespace zerorun {

// After this call, sums of values of `dtype`, a 16-bit type, are sent between hosts in `dtype`:
// each host rounds the fp32 sum of its ranks once. That halves the bytes, but the result then
// depends on which ranks share a host. Without it such sums are sent in fp32. Either all ranks call
// it, before the first sum that it concerns, or none does. Has no effect if the communicator does
// not add over links between hosts.
void bound_link(Communicator& communicator, DType dtype);

}  // namespace zerorun
