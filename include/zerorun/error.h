#pragma once

#include <stdexcept>
#include <string>

#include "zerorun/export.h"

namespace zerorun {

// Base class of all exceptions that zerorun throws. Messages say what was found, what was expected,
// where (rank, operation, parameter, JSON pointer, file) and what to do about it.
class ZR_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An invalid configuration: unknown key, wrong type, contradictory batch sizes.
class ZR_API ConfigError : public Error {
 public:
  using Error::Error;
};

// A collective that cannot complete: a peer died, ranks diverged, or a timeout passed.
class ZR_API CommError : public Error {
 public:
  using Error::Error;
};

// A device or host memory that is not available: out of memory, missing device.
class ZR_API DeviceError : public Error {
 public:
  using Error::Error;
};

// A file or socket that could not be read or written.
class ZR_API IoError : public Error {
 public:
  using Error::Error;
};

// A checkpoint that is damaged, incomplete, or belongs to another model.
class ZR_API CheckpointError : public Error {
 public:
  using Error::Error;
};

// Values with which training cannot continue: a gradient that overflows at the minimum loss scale.
class ZR_API NumericError : public Error {
 public:
  using Error::Error;
};

// A violated invariant of zerorun, or API calls in the wrong order: a bug, not bad input.
class ZR_API InternalError : public Error {
 public:
  using Error::Error;
};

}  // namespace zerorun
