#pragma once

#include <cstdint>
#include <span>

#include "zerorun/config.h"
#include "zerorun/engine.h"

namespace zerorun {

// Bytes of host memory that a rank keeps for asynchronous saves (checkpoint.async_save); 0 without
// them. What AsyncSaver takes, but for the padding of its pieces.
int64_t plan_snapshot(const Config& config, std::span<const ParameterSpec> specs, int world_size);

}  // namespace zerorun
