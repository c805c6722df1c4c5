#pragma once

#include <stdexcept>
#include <string>

#include "zerorun/export.h"

namespace zerorun {

// Every exception thrown by zerorun. Messages say what was found, what was expected, where
// (rank, operation, parameter, JSON pointer, file) and what to do about it.
class ZR_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A configuration that cannot be meant: unknown key, wrong type, contradictory batch sizes.
class ZR_API ConfigError : public Error {
 public:
  using Error::Error;
};

// A collective that cannot complete: peer died, ranks diverged, deadline passed.
class ZR_API CommError : public Error {
 public:
  using Error::Error;
};

// The accelerator or host memory refused: out of memory, missing device.
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

// Numbers with which training cannot go on: a gradient that overflows at the smallest loss scale.
class ZR_API NumericError : public Error {
 public:
  using Error::Error;
};

// A broken invariant of zerorun itself, or an API call out of order: a bug, not bad input.
class ZR_API InternalError : public Error {
 public:
  using Error::Error;
};

}  // namespace zerorun
