#pragma once

#include <functional>
#include <optional>
#include <string>

#include "core/log.h"
#include "train/report/metrics.h"
#include "train/report/progress.h"
#include "train/report/rank_figures.h"
#include "train/run/claimed_folder.h"
#include "train/run/run_setup.h"
#include "train/run/save_schedule.h"
#include "train/run/stop_signal.h"
#include "train/run/trainer.h"
#include "zerorun/checkpoint.h"
#include "zerorun/communicator.h"
#include "zerorun/device.h"

namespace zerorun::train {

// One run of the program: parameters loaded or initialised, steps, evaluations, checkpoints, the
// saved model and a sample, told about on rank 0. Everything public is collective.
class Run {
 public:
  // All must outlive it. Signals are held from the first step until all is saved.
  Run(const RunSetup& setup, Communicator& comm, Device& device, StopSignal& stop);

  void load();
  // Returns the signal that ended it early, or 0.
  int train();
  // Throws NumericError, with all saved, when a new run has skipped every one of its steps.
  void finish();

 private:
  void say(const std::string& text);
  void prepare_saves();
  void describe();
  void open_outputs();
  void open_metrics();
  void open_timeline();
  // As train, without its ends.
  int take_steps();
  void after_step(const StepReport& report);
  void write_metrics(const std::function<void()>& write);
  // `work` returns a line about the timeline's file, or "".
  void trace(const std::function<std::string(Timeline&)>& work);
  void save_when_due(int64_t step);
  void save();
  void save_model();
  void sample();
  void write_logits();
  bool is_first() const { return comm_.rank() == 0; }

  const RunSetup& setup_;
  const TrainOptions& options_;
  Communicator& comm_;
  Device& device_;
  StopSignal& stop_;
  Logger log_;
  ClaimedFolder folder_;  // rank 0's, before the memory of the model is taken
  Trainer trainer_;
  std::optional<AsyncSaver> saver_;  // with --save_async
  std::optional<Metrics> metrics_;
  std::optional<RankFigures> figures_;  // for them
  std::optional<Progress> progress_;    // rank 0
  SaveSchedule saves_;
  double saving_ms_ = 0.0;   // since the last step
  bool has_config_ = false;  // the --save folder has this run's config.json
};

}  // namespace zerorun::train
