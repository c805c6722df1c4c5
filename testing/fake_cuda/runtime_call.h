// Declarations that the parts of the fake CUDA runtime share.
#pragma once

#include <memory>

#include "device/cpu/cpu_stream.h"
#include "testing/fake_cuda/fake_cuda.h"

struct CUstream_st {
  std::unique_ptr<zerorun::CpuStream> worker;
  int device = 0;
};
struct CUevent_st {
  zerorun::Event last;  // recorded
  int device = 0;
};

namespace zerorun::fake {

inline FakeCuda& seen() { return FakeCuda::instance(); }

// The stream of a handle; null is the default stream of the current device.
cudaStream_t stream_of(cudaStream_t handle);

inline thread_local int current_device = 0;
inline thread_local bool has_context = false;  // on the current device
inline thread_local cudaError_t last_error = cudaSuccess;
inline thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

inline cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// The call makes the current device's context, if there is none.
inline void use_device() {
  has_context = true;
  seen().use_device(current_device);
}

// Counts the call; not success when the test wants it to fail.
inline cudaError_t enter_host(const char* name) {
  return result(static_cast<cudaError_t>(seen().enter(name)));
}
// Nor when earlier work on the device has failed.
inline cudaError_t enter(const char* name) {
  const auto planned = static_cast<cudaError_t>(seen().enter(name));
  return result(planned != cudaSuccess ? planned : seen().device_error(current_device));
}
inline cudaError_t enter(const char* name, cudaStream_t stream) {
  const auto planned = static_cast<cudaError_t>(seen().enter(name, stream_of(stream)));
  return result(planned != cudaSuccess ? planned : seen().device_error(current_device));
}

inline bool known(const char* kind, const void* handle) {
  if (seen().holds(kind, handle)) return true;
  seen().violate(std::string("a call gets a handle that is not one of ") + kind);
  return false;
}

bool is_stream(cudaStream_t stream);

// A call that ends the capture of a graph by another thread, unless its own thread is told not to.
inline void spoil_capture(const char* name) {
  if (!seen().capturing() || capture_mode != cudaStreamCaptureModeGlobal) return;
  seen().violate(std::string(name) + " spoils the capture of a graph");
}

// Waits for the work so far of all streams of the current device: some calls do.
void synchronize_device();
bool device_is_idle();

inline bool valid_device(int device) { return device >= 0 && device < seen().devices(); }

// Where some devices are linked, only those read each other's memory.
inline bool are_peers(int device, int peer) {
  const GpuLinks links = seen().links();
  const bool all = links.between.empty() || links.switched > 0;
  return device != peer && (all || links.direct(device, peer) > 0);
}

}  // namespace zerorun::fake

#define ENTER(...)                                                              \
  const zerorun::fake::InFake in_fake;                                          \
  do {                                                                          \
    if (const cudaError_t planned = enter(__func__ __VA_OPT__(, ) __VA_ARGS__); \
        planned != cudaSuccess) {                                               \
      return planned;                                                           \
    }                                                                           \
  } while (false)
// A call that asks nothing of the device.
#define ENTER_HOST()                                                                \
  const zerorun::fake::InFake in_fake;                                              \
  do {                                                                              \
    if (const cudaError_t planned = enter_host(__func__); planned != cudaSuccess) { \
      return planned;                                                               \
    }                                                                               \
  } while (false)
// A call that gives something back does so also when it reports an error, as CUDA's do: of earlier
// work.
#define ENTER_UNDO(...)                \
  const zerorun::fake::InFake in_fake; \
  const cudaError_t planned = enter(__func__ __VA_OPT__(, ) __VA_ARGS__)
// Whichever device it is of, the runtime begins with the thread's current one.
#define NEED(kind, handle) \
  use_device();            \
  if (!known(kind, handle)) return result(cudaErrorInvalidResourceHandle)
// From there on it is not null.
#define NEED_STREAM(stream)                  \
  use_device();                              \
  stream = zerorun::fake::stream_of(stream); \
  if (!zerorun::fake::is_stream(stream)) return result(cudaErrorInvalidResourceHandle)
