#pragma once

#include <cuda_runtime.h>

#include <memory>

#include "zerorun/device.h"
#include "zerorun/error.h"

namespace zerorun {

// A stream of a CUDA device. Kernels are launched on its handle:
//   kernel<<<grid, block, 0, cuda_stream(stream).handle()>>>(...)
// An interface without code of its own, so that libraries that are opened at run time can share it.
class CudaStream : public Stream {
 public:
  // Something that can fail while work of this stream runs: a communicator.
  class Watched {
   public:
    virtual ~Watched() = default;
    // Throws its error, if it has one.
    virtual void check() const = 0;
  };

  virtual cudaStream_t handle() const = 0;
  // The device's number, as cudaSetDevice takes it.
  virtual int device() const = 0;
  // From now on synchronize() and events recorded here also throw what `watched` throws, while it
  // lives; likewise of streams that wait for these events.
  virtual void watch(std::shared_ptr<const Watched> watched) = 0;
};

// The stream as a CudaStream; throws InternalError for a stream of another device.
inline CudaStream& cuda_stream(Stream& stream) {
  auto* cuda = dynamic_cast<CudaStream*>(&stream);
  if (cuda == nullptr) {
    throw InternalError("got a stream of another device, expected one of a CUDA device");
  }
  return *cuda;
}

}  // namespace zerorun
