#pragma once

#include <cstddef>

#include "zerorun/device.h"

namespace zerorun::train::cuda {

// Device memory that kernels of one stream use one after the other. It grows with the micro-batch
// and the sequence, so it is counted with the activations.
class Workspace {
 public:
  Workspace(Device& device, Stream& stream) : device_(device), stream_(stream) {}

  // At least so many bytes; what was there before is lost.
  void* take(size_t nbytes) {
    if (nbytes > buffer_.nbytes()) {
      stream_.synchronize();  // the memory goes to whoever asks next
      buffer_ = Buffer();
      buffer_ = device_.allocate(nbytes, MemoryCategory::activations);
    }
    return buffer_.data();
  }
  float* floats(int64_t numel) {
    return static_cast<float*>(take(static_cast<size_t>(numel) * sizeof(float)));
  }

 private:
  Device& device_;
  Stream& stream_;
  Buffer buffer_;
};

}  // namespace zerorun::train::cuda
