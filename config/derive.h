#pragma once

#include "config/key_check.h"

namespace zerorun {

// The typed form of a file's keys: their values, defaults that depend on other keys, and members
// that follow from several keys. Ignores values that are not valid.
Config derive_config(const KeyTable& table, const GivenKeys& keys);

// The dtype of the parameters, by the keys that decide it.
DType model_dtype(const GivenKeys& keys);

}  // namespace zerorun
