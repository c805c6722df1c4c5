#pragma once

#include <cstdint>

#include "tools/plan/plan.h"
#include "tools/plan/plan_model.h"
#include "zerorun/config.h"

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

}  // namespace zerorun
