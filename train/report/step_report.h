#pragma once

#include <cstdint>
#include <optional>

namespace zerorun::train {

// Where the time of a step goes.
struct StepTimes {
  double step_ms = 0.0;  // all of the following, and the ranks' agreement
  double data_ms = 0.0;
  double fwd_bwd_ms = 0.0;    // forward and backward without communication
  double reduce_ms = 0.0;     // doing or waiting for reductions
  double gather_ms = 0.0;     // the same of gathers
  double optimizer_ms = 0.0;  // norm, update and all-gather of the parameters

  double comm_ms() const { return reduce_ms + gather_ms; }
};

// The figures of one step of training.
struct StepReport {
  int64_t step = 0;     // counted from 1
  int64_t samples = 0;  // of all ranks so far
  double loss = 0.0;    // mean over ranks and micro-steps
  float lr = 0.0F;
  double grad_norm = 0.0;  // before clipping
  double clip_factor = 1.0;
  double loss_scale = 1.0;    // what the gradients were made with
  bool skipped = false;       // the gradient was not finite
  int64_t skipped_steps = 0;  // since the training began
  StepTimes times;
  double tokens_per_s = 0.0;      // of all ranks
  std::optional<double> mfu{};    // part of the ranks' peak; unset: the peak is not known
  int64_t model_state_bytes = 0;  // of this rank, like the next
  int64_t peak_rss_bytes = 0;

  double clipped_grad_norm() const { return grad_norm * clip_factor; }
};

}  // namespace zerorun::train
