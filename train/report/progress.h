#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

namespace zerorun::train {

// How the time of a step is divided.
struct StepTimes {
  double step_ms = 0.0;  // whole step: the following times and the agreement of the ranks
  double data_ms = 0.0;
  double fwd_bwd_ms = 0.0;    // forward and backward without communication
  double reduce_ms = 0.0;     // performing or waiting for reductions
  double gather_ms = 0.0;     // performing or waiting for gathers
  double optimizer_ms = 0.0;  // norm, update and all_gather of the parameters

  double comm_ms() const { return reduce_ms + gather_ms; }
};

// The figures of one step of training.
struct StepReport {
  int64_t step = 0;     // counted from 1
  int64_t samples = 0;  // number of samples of all ranks so far
  double loss = 0.0;    // mean over ranks and micro-steps
  float lr = 0.0F;
  double grad_norm = 0.0;  // L2 norm before clipping
  double clip_factor = 1.0;
  double loss_scale = 1.0;    // loss scale with which the gradients were computed
  bool skipped = false;       // the gradient was not finite
  int64_t skipped_steps = 0;  // number of skipped steps so far
  StepTimes times;
  double tokens_per_s = 0.0;      // tokens per second of all ranks
  std::optional<double> mfu{};    // fraction of the ranks' peak rate; unset if that is unknown
  int64_t model_state_bytes = 0;  // of this rank, like the next
  int64_t peak_rss_bytes = 0;

  double clipped_grad_norm() const { return grad_norm * clip_factor; }
};

struct ProgressOptions {
  int64_t first_step = 0;  // number of steps before this run
  int64_t last_step = 0;
  std::optional<int64_t> steps_per_print;  // unset: about twenty lines, or one every ten seconds
  bool breakdown = false;                  // show where the time goes
  bool terminal = false;                   // rewrite one line instead of adding lines
};

// Returns the text of a progress line: step, loss, tokens per second, memory, remaining time.
std::string progress_line(const StepReport& report, const ProgressOptions& options,
                          double seconds_left);

// Writes progress lines and lines about events to a stream of rank 0.
class Progress {
 public:
  Progress(std::FILE* stream, const ProgressOptions& options);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void report(const StepReport& report);
  void event(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;
  bool is_due(int64_t step) const;
  void end_line();

  std::FILE* stream_;
  ProgressOptions options_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point shown_{};
  bool line_is_open_ = false;
};

}  // namespace zerorun::train
