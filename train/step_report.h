#pragma once

#include <cstdint>
#include <optional>

namespace zerorun::train {

// The figures of one step of training.
struct StepReport {
  int64_t step = 0;   // counted from 1
  double loss = 0.0;  // mean over ranks and micro-steps
  float lr = 0.0F;
  double grad_norm = 0.0;  // before clipping
  double clipped_grad_norm = 0.0;
  double loss_scale = 1.0;        // what the gradients were made with
  bool skipped = false;           // the gradient was not finite
  double step_ms = 0.0;           // all of the following, the data and the ranks' agreement
  double fwd_bwd_ms = 0.0;        // forward and backward without communication
  double comm_ms = 0.0;           // doing or waiting for reductions and gathers
  double optimizer_ms = 0.0;      // norm, update and all-gather of the parameters
  double tokens_per_s = 0.0;      // of all ranks
  std::optional<double> mfu{};    // part of the ranks' peak; unset: the peak is not known
  int64_t model_state_bytes = 0;  // of this rank, like the next
  int64_t peak_rss_bytes = 0;
};

}  // namespace zerorun::train
