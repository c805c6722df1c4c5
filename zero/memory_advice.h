#pragma once

#include "zerorun/config.h"
#include "zerorun/device.h"

namespace zerorun {

// The settings that bear on the memory of a device.
struct MemorySettings {
  int stage = 0;
  bool offload_optimizer = false;
  bool offload_param = false;
};
MemorySettings memory_settings(const Config& config);

// Names the settings, beyond those in force, that would free the bytes that are missing: each that
// is enough by itself, or else all of them where they are enough.
MemoryAdviser memory_adviser(const MemorySettings& settings);

}  // namespace zerorun
