#pragma once

#include "zerorun/communicator.h"

namespace zerorun {

// A Communicator whose sums cross links between hosts, and may do so in fewer bytes.
class LinkBound {
 public:
  virtual ~LinkBound() = default;
  // All ranks call it before the first sum that it concerns, or none does. Sums of values of
  // `dtype`, a 16-bit one, then cross the link in it, rounded for each host: half of the bytes, but
  // their bits depend on the layout of hosts. Without it a host's sum of several ranks crosses in
  // fp32.
  virtual void bound_link(DType dtype) = 0;
};

// Does nothing where no sum crosses a link in other bytes than the transport's own.
inline void bound_link(Communicator& communicator, DType dtype) {
  if (auto* const links = dynamic_cast<LinkBound*>(&communicator)) links->bound_link(dtype);
}

}  // namespace zerorun
