#pragma once

#include "zerorun/communicator.h"

namespace zerorun {

// Interface of a Communicator that sums over links between hosts and can send those sums in fewer
// bytes.
class LinkBound {
 public:
  virtual ~LinkBound() = default;
  // After this call, sums of values of `dtype`, a 16-bit type, are sent between hosts in `dtype`:
  // each host rounds the fp32 sum of its ranks once. That halves the bytes, but the result then
  // depends on which ranks share a host. Without it such sums are sent in fp32. Either all ranks
  // call it, before the first sum that it concerns, or none does.
  virtual void bound_link(DType dtype) = 0;
};

// Calls bound_link() if the communicator is a LinkBound, else does nothing.
inline void bound_link(Communicator& communicator, DType dtype) {
  if (auto* const links = dynamic_cast<LinkBound*>(&communicator)) links->bound_link(dtype);
}

}  // namespace zerorun
