#pragma once

#include <cuda_runtime.h>

namespace zerorun {

// While this lives, what the thread asks of CUDA does not spoil a CUDA graph that another thread is
// capturing: by default even the query of an unrelated event does.
class RelaxedCapture {
 public:
  RelaxedCapture() noexcept { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // then the one before
};

}  // namespace zerorun
