#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "train/model/kernels.h"
#include "train/model/model.h"
#include "train/model/parameters.h"
#include "train/model/traced_parameters.h"
#include "train/report/step_report.h"
#include "train/run/rank_sums.h"
#include "train/run/run_setup.h"
#include "zerorun/communicator.h"
#include "zerorun/engine.h"
#include "zerorun/lr_schedule.h"
#include "zerorun/timeline.h"

namespace zerorun::train {

// How far a run has come.
struct Position {
  int64_t step = 0;     // steps done, skipped ones included
  int64_t samples = 0;  // sequences trained on, by all ranks
};

// The model and engine of one rank, and the steps they take. Everything public is collective.
class Trainer {
 public:
  // Setup, communicator and device must outlive it. The kernels are the device's.
  Trainer(const RunSetup& setup, Communicator& comm, Device& device);
  Trainer(const RunSetup& setup, Communicator& comm, Device& device,
          std::unique_ptr<Kernels> kernels);

  // Initial parameters: those of --init, or random ones.
  void initialize();

  struct Outcome {
    StepReport report;
    int signal = 0;  // one that arrived at some rank, the same on all
  };
  // One step on the next samples. `received` is a signal that arrived at this rank, or 0.
  Outcome step(int received);

  // Mean loss over the first of the sequences that are kept for evaluation.
  double evaluate();

  // Measures what the ranks' kernels can do at most, for StepReport::mfu.
  void measure_peak();

  // Begins a timeline of this trainer's steps. Not collective; throws on rank 0 what
  // Timeline::create throws.
  void trace(TimelineOptions options);
  Timeline* timeline() { return timeline_.get(); }  // null: none

  Position position() const { return position_; }
  void set_position(Position position) { position_ = position; }
  Engine& engine() { return *engine_; }
  Model& model() { return model_; }
  const Kernels& kernels() const { return *kernels_; }

 private:
  struct Agreement {
    double loss = 0.0;
    int signal = 0;
  };
  // The loss of a step, and what signals ranks have received. It goes round before the step, whose
  // gathers of parameters it would wait for.
  void start_agreement(double loss_sum, int received);
  Agreement agree();
  // Forward and backward of all micro-steps, and their reductions. Returns the seconds that their
  // data took.
  double accumulate(double loss_scale);
  // Each value's sum over the ranks.
  void add_over_ranks(std::span<float> values, std::string_view label);
  // Learning rates of the coming step. A function of the applied steps, so skipped ones do not
  // advance it and a checkpoint need not say more.
  void follow_schedule();

  const RunSetup& setup_;
  Communicator& comm_;
  Device& device_;
  const std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<LrSchedule> schedule_;
  TracedParameters parameters_;
  Model model_;
  std::unique_ptr<Timeline> timeline_;
  double peak_flops_ = 0.0;  // per second, of all ranks; 0: not measured
  RankSums sums_;
  Position position_;
};

}  // namespace zerorun::train
