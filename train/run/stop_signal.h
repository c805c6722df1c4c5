#pragma once

#include <atomic>
#include <csignal>
#include <mutex>
#include <thread>

namespace zerorun::train {

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

}  // namespace zerorun::train
