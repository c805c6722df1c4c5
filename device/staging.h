#pragma once

#include "zerorun/device.h"

namespace zerorun {

// Allocates host memory that copies from and to the device do not wait for: pinned if it is a GPU.
inline Buffer allocate_staging(Device& device, size_t nbytes) {
  return device.is_host() ? device.allocate(nbytes, MemoryCategory::other)
                          : device.allocate_pinned(nbytes);
}

}  // namespace zerorun
