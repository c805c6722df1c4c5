#pragma once

#include <stdexcept>
#include <string>

#include "zerorun/export.h"

namespace zerorun {

// Base class of all exceptions that zerorun throws. Messages say what was found, what was expected,
// where (rank, operation, parameter, JSON pointer, file) and what to do about it.
struct ZR_API Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// An invalid configuration: unknown key, wrong type, contradictory batch sizes.
struct ZR_API ConfigError : Error {
  using Error::Error;
};

// A collective that cannot complete: a peer died, ranks diverged, or a timeout passed.
struct ZR_API CommError : Error {
  using Error::Error;
};

// A device or host memory that is not available: out of memory, missing device.
struct ZR_API DeviceError : Error {
  using Error::Error;
};

// A file or socket that could not be read or written.
struct ZR_API IoError : Error {
  using Error::Error;
};

// A checkpoint that is damaged, incomplete, or belongs to another model.
struct ZR_API CheckpointError : Error {
  using Error::Error;
};

// Values with which training cannot continue: a gradient that overflows at the minimum loss scale.
struct ZR_API NumericError : Error {
  using Error::Error;
};

// A violated invariant of zerorun, or API calls in the wrong order: a bug, not bad input.
struct ZR_API InternalError : Error {
  using Error::Error;
};

}  // namespace zerorun
