#pragma once

#include <cstdint>
#include <span>

#include "zero/memory_plan.h"
#include "zerorun/config.h"
#include "zerorun/engine.h"

namespace zerorun {

// Returns the bytes of host memory that a rank needs for asynchronous saves
// (checkpoint.async_save); 0 without them. Equals the allocation of AsyncSaver except for padding.
int64_t plan_snapshot(const Config& config, std::span<const ParameterSpec> specs,
                      const HostLayout& layout);

}  // namespace zerorun
