#pragma once

#include <cstdint>
#include <span>

#include "tools/plan/plan.h"
#include "tools/plan/plan_model.h"
#include "zero/memory_plan.h"
#include "zerorun/config.h"
#include "zerorun/engine.h"

namespace zerorun {

// The work of a micro-step: from the options, else from the file, else the default of the bundled
// program.
struct Workload {
  int64_t micro_batch = 0;  // 0: that of the file, which may be "auto"
  int64_t seq_len = 0;      // 0: activations are not counted
  bool recompute = false;
  bool fast_attention = false;
};

// Reads the keys of "zerorun.train" as `train` does.
Workload workload_of(const PlanOptions& options, const Config& config);

// Bytes of activations of a micro-batch, and on GPUs of attention's backward. A double, since no
// size is too large to ask for.
double activation_nbytes(const PlanModel& model, const Workload& work, const Config& config,
                         bool cpu);

// Returns the bytes of host memory that a rank needs for asynchronous saves
// (checkpoint.async_save); 0 without them. Equals the allocation of AsyncSaver except for padding.
int64_t plan_snapshot(const Config& config, std::span<const ParameterSpec> specs,
                      const HostLayout& layout);

}  // namespace zerorun
