#pragma once

#include <atomic>
#include <csignal>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

#include "train/run/run_setup.h"
#include "zerorun/communicator.h"
#include "zerorun/device.h"

namespace zerorun::train {

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

// Receives SIGINT and SIGTERM on a separate thread. A signal handler would run on the stack of
// whichever thread the kernel selects. While oneDNN multiplies matrices, the stack pointer of a
// thread may be the start of a heap block (jit_avx_gemm_f32.cpp, "buffer_in_ws"), and the handler's
// frame would overwrite the heap before it.
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
