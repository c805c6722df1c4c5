#pragma once

#include "zerorun/error.h"

namespace zerorun {

// Too little memory of a device, or of a framework that lends it, which may be there later. Whoever
// can do without for now catches this and nothing wider.
class ZR_API OutOfMemory : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

}  // namespace zerorun
