#pragma once

#include <atomic>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "os/file_descriptor.h"
#include "train/run/run_setup.h"
#include "train/run/trainer.h"
#include "zerorun/checkpoint.h"

namespace zerorun::train {

// The folder of a run has config.json and model.safetensors in Hugging Face's format, a folder for
// each checkpoint, `latest`, and the lock of the run that saves there.

// The claim of a run, on rank 0, to its --save folder. It lasts as long as this object; the system
// ends it when the process ends, for whatever reason. A folder with checkpoints of another run is
// renamed first, so that nothing is lost.
class RunFolder {
 public:
  RunFolder() = default;  // claims nothing
  // Creates the folder if necessary. `job` is the name of the job, without line breaks, or empty.
  // Throws ConfigError if saving would destroy other content of the folder, and IoError if it
  // cannot be written or renamed, or another run holds it, whose process and host are named. A file
  // system that does not support locks is no error.
  RunFolder(const TrainOptions& options, const std::string& job);

  // Returns the new name of the folder that contained another run, else "".
  const std::string& moved_to() const { return moved_to_; }
  // Throws IoError if the disk has less free space than `nbytes`.
  void check_room(uint64_t nbytes) const;

 private:
  void check_other_options(const TrainOptions& options) const;
  void move_away();
  void lock(const std::string& job);

  std::string given_;           // --save as it was written
  std::filesystem::path path_;  // without links
  std::string moved_to_;
  FileDescriptor lock_;
};

// Returns a name that all ranks of a job share, also after restarts; "" if the job has none.
std::string job_name();
// True if the launcher has restarted this run and --save has a checkpoint of the same job.
bool continues_after_restart(const TrainOptions& options, const std::string& job);

// Returns the size in bytes of a checkpoint and of the saved model, for all ranks together.
// Collective.
uint64_t saved_nbytes(Trainer& trainer, Communicator& comm);

// Saves everything that is needed to continue; in the background if there is a saver. Collective.
void save_run(const std::string& folder, const RunSetup& setup, Trainer& trainer,
              Communicator& comm, AsyncSaver* saver = nullptr);

// Loads the last checkpoint. Returns a warning if the run will see other data than an uninterrupted
// run would have seen, else "". Throws CheckpointError for a checkpoint of another program or
// model. Collective.
std::string resume_run(const std::string& folder, const RunSetup& setup, Trainer& trainer,
                       Communicator& comm);

// Decides after which steps a run saves. If a save is due while the previous asynchronous save is
// still running, it is delayed until the first step after that; further saves that become due in
// the meantime are dropped. Checkpoints that keep_every keeps are always saved at their own step,
// for which training waits.
class SaveSchedule {
 public:
  // `every` is the number of steps between saves; 0: never.
  SaveSchedule(int64_t every, int64_t keep_every) : every_(every), keep_every_(keep_every) {}

  // Must be called after each step; returns true to save. `is_free` is true if no save is running.
  bool is_time(int64_t step, bool is_free);
  void saved(int64_t step);

  int64_t last_step() const { return last_step_; }  // last step that was saved; -1: none
  int64_t due() const { return due_; }
  int64_t put_off() const { return put_off_; }

 private:
  const int64_t every_;
  const int64_t keep_every_;
  int64_t last_step_ = -1;
  int64_t due_ = 0;
  int64_t put_off_ = 0;
  bool is_waiting_ = false;  // a delayed save is waiting
};

// Receives SIGINT, SIGTERM and, unless it was ignored (nohup), SIGHUP on a separate thread. A
// signal handler would run on the stack of whichever thread the kernel selects. While oneDNN
// multiplies matrices, the stack pointer of a thread may be the start of a heap block
// (jit_avx_gemm_f32.cpp, "buffer_in_ws"), and the handler's frame would overwrite the heap before
// it.
class StopSignal {
 public:
  // Create one object per process before any thread is started, because threads inherit the mask
  // that blocks the signals.
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // By default the signals end the process. Between hold() and release() they are remembered
  // instead, and take effect at release().
  void hold();
  void release();
  // Returns the last remembered signal, or 0.
  int received() const;

 private:
  void watch();

  sigset_t signals_ = {};
  sigset_t previous_mask_ = {};
  mutable std::mutex mutex_;
  bool holding_ = false;
  int received_ = 0;
  std::atomic<bool> ending_ = false;
  std::thread watcher_;
};

// Prepares a run: claims its folder and allocates its memory. Returns the function that loads or
// initialises parameters, trains, evaluates, saves checkpoints and the model, and generates a
// sample. That returns the signal that ended the run early, or 0, and throws NumericError, after
// saving, if a new run has skipped all of its steps. Rank 0 prints the progress. Signals are
// deferred from the first step until everything is saved. All arguments must outlive the run.
// Collective.
std::function<int()> prepare_run(const RunSetup& setup, Communicator& comm, Device& device,
                                 StopSignal& stop);

}  // namespace zerorun::train
