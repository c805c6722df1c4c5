#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string_view>

#include "device/cpu/cpu_stream.h"
#include "train/model/kernels.h"
#include "train/model/model.h"
#include "train/model/parameters.h"
#include "train/report/report.h"
#include "train/run/run_setup.h"
#include "zerorun/communicator.h"
#include "zerorun/engine.h"
#include "zerorun/lr_schedule.h"
#include "zerorun/timeline.h"

namespace zerorun::train {

// The progress of a run.
struct Position {
  int64_t step = 0;     // completed steps, including skipped ones
  int64_t samples = 0;  // sequences that all ranks have trained on
};

// Sums a few numbers over all ranks asynchronously, so that the caller can submit more work to the
// device meanwhile. For each sum: put(), start() and finish().
class RankSums {
 public:
  RankSums(Device& device, Communicator& comm);

  // Sets the values to add, at most four. The inline stream may replace some of them in the result,
  // which is on the device, before start().
  TensorView put(std::span<const float> values);
  // Starts summing. Collective.
  void start(std::string_view label);
  // Waits for the sums.
  void finish(std::span<float> sums);
  // Replaces each value by its sum.
  void add(std::span<float> values, std::string_view label) {
    put(values);
    start(label);
    finish(values);
  }

 private:
  Device& device_;
  Communicator& comm_;
  const Buffer on_host_;
  const Buffer on_device_;
  TensorView values_;
  Event there_;
};

// Tells when the device's inline stream reached a point. A thread waits for it if the device works
// asynchronously, so that the caller need not.
class StreamClock {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit StreamClock(Device& device);

  // The point is after all work that was submitted so far.
  void mark();
  // The time of the last mark(). Waits for it.
  Time read();

 private:
  Device& device_;
  Time time_{};
  // Null on the CPU, whose inline stream is the caller. Last: its thread writes the time.
  const std::unique_ptr<CpuStream> thread_;
};

// Trains the model of one rank with an engine. All public methods are collective unless noted.
class Trainer {
 public:
  // Setup, communicator and device must outlive this object. Creates the kernels of the device.
  Trainer(const RunSetup& setup, Communicator& comm, Device& device);
  Trainer(const RunSetup& setup, Communicator& comm, Device& device,
          std::unique_ptr<Kernels> kernels);

  // Sets the initial parameters: those of --init, or random ones.
  void initialize();

  struct Outcome {
    StepReport report;
    int signal = 0;  // signal that arrived at some rank; the same on all ranks
  };
  // Trains one step on the next samples. `received` is a signal that arrived at this rank, or 0.
  Outcome step(int received);

  // Returns the mean loss over the first sequences of the evaluation part.
  double evaluate();

  // Measures the peak rate of the ranks' kernels, for StepReport::mfu.
  void measure_peak();

  // Starts a timeline of the steps. Not collective. Throws on rank 0 what Timeline::create throws.
  void trace(TimelineOptions options);
  Timeline* timeline() { return timeline_.get(); }  // null if there is none

  Position position() const { return position_; }
  void set_position(Position position) { position_ = position; }
  Engine& engine() { return *engine_; }
  Model& model() { return model_; }
  const Kernels& kernels() const { return *kernels_; }

 private:
  // Runs forward, backward and reductions of all micro-steps. Returns the time in seconds for
  // preparing their data.
  double accumulate(double loss_scale);
  // Sets the learning rates of the next step. They depend only on the number of applied steps, so
  // skipped steps do not advance them and a checkpoint needs no further state.
  void follow_schedule();

  const RunSetup& setup_;
  Communicator& comm_;
  Device& device_;
  const std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<LrSchedule> schedule_;
  EngineParameters parameters_;
  Model model_;
  std::unique_ptr<Timeline> timeline_;
  double peak_flops_ = 0.0;  // operations per second of all ranks; 0: not measured
  RankSums sums_;
  StreamClock clock_;
  Position position_;
};

}  // namespace zerorun::train
