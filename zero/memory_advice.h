#pragma once

#include "zerorun/config.h"
#include "zerorun/device.h"

namespace zerorun {

// The settings that determine how much device memory an engine needs.
struct MemorySettings {
  int stage = 0;
  bool offload_optimizer = false;
  bool offload_param = false;
};
MemorySettings memory_settings(const Config& config);

// Makes the function that advises about settings after an allocation failed. Given the bytes that
// are missing, it names each further setting that would free enough by itself or, if none would,
// all of them if they would together.
MemoryAdviser memory_adviser(const MemorySettings& settings);

}  // namespace zerorun
