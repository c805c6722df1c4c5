#pragma once

#include <csignal>
#include <mutex>
#include <thread>

#include "os/file_descriptor.h"

namespace zerorun::train {

// Takes SIGINT and SIGTERM on a thread of its own. A handler would run on the stack of whatever
// thread the kernel picks, and while oneDNN multiplies matrices its stack pointer may be the start
// of a block of the heap (jit_avx_gemm_f32.cpp, "buffer_in_ws"): the handler's frame would
// overwrite what lies before it.
class StopSignal {
 public:
  // One a process, before it starts any thread: threads inherit that the signals are blocked.
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // The signals end the process, as they do by default, except between hold() and release(), when
  // they are remembered. One that was remembered takes effect at release().
  void hold();
  void release();
  // The last signal that was remembered, or 0.
  int received() const;

 private:
  void watch();
  void take(int signal);

  sigset_t previous_mask_ = {};
  FileDescriptor signals_;
  FileDescriptor end_;  // readable when the thread shall end
  mutable std::mutex mutex_;
  bool holding_ = false;
  int received_ = 0;
  std::thread watcher_;
};

}  // namespace zerorun::train
