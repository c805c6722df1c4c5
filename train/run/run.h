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

// One run of the program: loads or initialises parameters, trains, evaluates, saves checkpoints and
// the model, and generates a sample. Rank 0 prints the progress. All public methods are collective.
class Run {
 public:
  // All arguments must outlive this object. Signals are deferred from the first step until
  // everything is saved.
  Run(const RunSetup& setup, Communicator& comm, Device& device, StopSignal& stop);

  void load();
  // Returns the signal that ended the run early, or 0.
  int train();
  // Throws NumericError, after saving, if a new run has skipped all of its steps.
  void finish();

 private:
  void say(const std::string& text);
  void prepare_saves();
  void describe();
  void open_outputs();
  void open_metrics();
  void open_timeline();
  // The steps of train(), without its beginning and end.
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
  ClaimedFolder folder_;  // on rank 0; claimed before the memory of the model is allocated
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
