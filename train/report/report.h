#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "zero/timeline/span_log.h"
#include "zerorun/communicator.h"
#include "zerorun/engine.h"

// What a run tells of its steps: lines for its user, and a metrics file.
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

// Returns the path of a rank's file: `path` for rank 0, files beside it for others ("m.rank1.jsonl"
// for "m.jsonl"). If `path` is a pipe or a device, only rank 0 writes, and others get "".
std::string metrics_path(const std::string& path, int rank);

// A metrics file (docs/metrics.md) with one JSON object per line: for the run, for each step, and
// for the end.
class Metrics {
 public:
  enum class Mode : uint8_t { replace, append };
  // Throws IoError if the file cannot be written.
  Metrics(const std::string& path, Mode mode);
  // Writes the first line; `run` describes the run.
  void begin(int rank, int world_size, const nlohmann::ordered_json& run);
  // Writes the line of a step; `more` has further figures of this rank, or is null.
  void write(const StepReport& report, const nlohmann::ordered_json& more);
  void finish(uint64_t param_hash);

 private:
  void write_line(const nlohmann::ordered_json& line);

  std::string path_;
  std::ofstream file_;
};

// Collects the figures of a rank's engine (times, bytes, memory) for the lines of its metrics file.
class RankFigures {
 public:
  // Starts counting. Engine and communicator must outlive this object.
  RankFigures(Engine& engine, Communicator& comm);

  // Returns the figures of the step that has just ended.
  nlohmann::ordered_json take();

 private:
  nlohmann::ordered_json take_collectives();

  Engine& engine_;
  Communicator& comm_;
  WorkMeter work_;
  CommStats counted_;  // up to the step before, like the next
  std::array<double, kCollectives> seconds_{};
};

}  // namespace zerorun::train
