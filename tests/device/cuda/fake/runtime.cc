// Devices, streams and events of the fake CUDA runtime: see include/cuda_runtime.h.
#include <cstring>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "tests/device/cuda/fake/runtime_call.h"

using namespace zerorun::fake;

namespace {

// A stream's error becomes the runtime's, and so does that of any work on the device.
cudaError_t wait_for(const zerorun::Event& event) {
  try {
    event.synchronize();
    return result(seen().device_error(current_device));
  } catch (const std::exception& error) {
    seen().violate(std::string("work on a stream failed: ") + error.what());
    return result(cudaErrorLaunchFailure);
  }
}

cudaError_t make_stream(cudaStream_t* stream) {
  auto made = std::make_unique<CUstream_st>();
  made->worker = seen().inline_streams() ? zerorun::make_inline_stream()
                                         : zerorun::make_worker_stream("fake-cuda");
  made->device = current_device;
  use_device();
  *stream = made.release();
  seen().hold("streams", *stream);
  return cudaSuccess;
}

}  // namespace

namespace zerorun::fake {

cudaError_t submit(cudaStream_t stream, std::function<void()> task) {
  if (stream->device != current_device) {
    seen().violate("work for a stream of another device than the current one");
  }
  stream->worker->submit([task = std::move(task), device = stream->device] {
    const auto delay = FakeCuda::instance().draw_delay();
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    if (seen().device_error(device) == cudaSuccess) task();
  });
  return cudaSuccess;
}

cudaError_t launch(const std::type_info& kernel, dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, std::function<void()> thread) {
  if (const cudaError_t planned = enter("cudaLaunchKernel", stream); planned != cudaSuccess) {
    return planned;
  }
  NEED("streams", stream);
  seen().note_launch(kernel.name());
  const unsigned threads = block.x * block.y * block.z;
  if (shared_bytes != 0 || threads == 0 || threads > 1024 || grid.x == 0 || grid.y > 65535 ||
      grid.z > 65535) {
    seen().violate("a kernel is launched with a grid or block of no valid size");
    return result(cudaErrorInvalidValue);
  }
  return submit(stream, [=, body = std::move(thread)] { run_grid(grid, block, body); });
}

void synchronize_device() {
  std::vector<zerorun::Event> events;
  seen().for_each("streams", [&](const void* handle) {
    const auto* const stream = static_cast<cudaStream_t>(const_cast<void*>(handle));
    if (stream->device == current_device) events.push_back(stream->worker->record());
  });
  for (const zerorun::Event& event : events) wait_for(event);
}

}  // namespace zerorun::fake

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    default:
      return "cudaErrorOther";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorNoDevice ? "no CUDA-capable device is detected" : "a fake error";
}

cudaError_t cudaDriverGetVersion(int* version) {
  ENTER_HOST();
  *version = seen().driver();
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  ENTER_HOST();
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  ENTER_HOST();
  if (seen().driver() < 12000) return result(cudaErrorInsufficientDriver);
  *count = seen().devices();
  return *count == 0 ? result(cudaErrorNoDevice) : cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  ENTER_HOST();
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  ENTER_HOST();
  if (!valid_device(device)) return result(cudaErrorInvalidDevice);
  current_device = device;
  use_device();
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  ENTER_HOST();
  if (!valid_device(device)) return result(cudaErrorInvalidDevice);
  *properties = {};
  std::strcpy(properties->name, "Fake GPU");
  properties->uuid.bytes[15] = static_cast<char>(device);
  properties->totalGlobalMem = seen().memory();
  properties->major = 9;
  properties->multiProcessorCount = 132;
  properties->pciBusID = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  ENTER_HOST();
  if (!valid_device(device)) return result(cudaErrorInvalidDevice);
  *value = attribute == cudaDevAttrMultiProcessorCount ? 132 : 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  ENTER();
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  ENTER_HOST();
  if (!valid_device(device) || !valid_device(peer)) return result(cudaErrorInvalidDevice);
  const GpuLinks links = seen().links();
  const bool all = links.between.empty() || links.switched > 0;
  *can = device != peer && (all || links.direct(device, peer) > 0) ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  ENTER();
  return make_stream(stream);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned /*flags*/, int priority) {
  ENTER();
  if (priority > 0 || priority < -5) seen().violate("a stream's priority is out of range");
  return make_stream(stream);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  ENTER_UNDO(stream);
  use_device();
  if (!seen().release("streams", stream)) return result(cudaErrorInvalidResourceHandle);
  delete stream;
  return planned;
}

// An error is told when the work is over, as by the real ones: no copy is under way any more.
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const cudaError_t planned = enter(__func__, stream);
  spoil_capture(__func__);
  NEED("streams", stream);
  const cudaError_t waited = wait_for(stream->worker->record());
  return planned != cudaSuccess ? planned : waited;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  ENTER(stream);
  spoil_capture(__func__);
  NEED("streams", stream);
  return result(stream->worker->record().ready() ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  ENTER_HOST();
  std::swap(capture_mode, *mode);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  ENTER(stream);
  NEED("streams", stream);
  NEED("events", event);
  stream->worker->wait(event->last);
  return cudaSuccess;
}

// CUDA promises host functions no thread of their own: all have one here.
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  ENTER(stream);
  NEED("streams", stream);
  static const auto thread = zerorun::make_worker_stream("fake-host-func");
  return zerorun::fake::submit(stream, [=] {
    thread->submit([=] { function(argument); });
    thread->record().synchronize();
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  ENTER();
  if ((flags & cudaEventBlockingSync) == 0) seen().violate("an event whose waits take a core each");
  *event = new CUevent_st{{}, current_device};
  use_device();
  seen().hold("events", *event);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  ENTER_UNDO();
  use_device();
  if (!seen().release("events", event)) return result(cudaErrorInvalidResourceHandle);
  delete event;
  return planned;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  ENTER(stream);
  NEED("events", event);
  NEED("streams", stream);
  if (event->device != stream->device) {
    seen().violate("an event is recorded on a stream of another device");
    return result(cudaErrorInvalidResourceHandle);
  }
  event->last = stream->worker->record();
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  ENTER();
  spoil_capture(__func__);
  NEED("events", event);
  return result(event->last.ready() ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const cudaError_t planned = enter(__func__);
  spoil_capture(__func__);
  NEED("events", event);
  const cudaError_t waited = wait_for(event->last);
  return planned != cudaSuccess ? planned : waited;
}
