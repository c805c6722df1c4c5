// Devices, streams and events of the fake CUDA runtime: see include/cuda_runtime.h.
//
// The source of each function here and in memory.cc is its comment in CUDA 13.0's
// cuda_runtime_api.h, where no other is named: what it returns, refuses and waits for. All of them
// may also return errors of earlier work on the device.
#include <cstring>

#include "testing/fake_cuda/runtime_call.h"

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

namespace {

struct DefaultStreams {
  std::mutex mutex;
  std::map<int, CUstream_st> of_devices;
};
// They live as long as the process.
DefaultStreams& default_streams() {
  static auto* const streams = new DefaultStreams;
  return *streams;
}

}  // namespace

// cuda_runtime_api.h, "Stream synchronization behavior": the legacy default stream and streams that
// are not blocking, as all others here, do not wait for each other.
cudaStream_t stream_of(cudaStream_t handle) {
  if (handle != nullptr) return handle;
  DefaultStreams& streams = default_streams();
  const std::lock_guard lock(streams.mutex);
  CUstream_st& stream = streams.of_devices[current_device];
  if (!stream.worker) stream.worker = zerorun::make_worker_stream("fake-default");
  stream.device = current_device;
  return &stream;
}

namespace {

// The work so far of all streams of the current device.
std::vector<zerorun::Event> work_of_device() {
  std::vector<zerorun::Event> events = {stream_of(nullptr)->worker->record()};
  seen().for_each("streams", [&](const void* handle) {
    const auto* const stream = static_cast<cudaStream_t>(const_cast<void*>(handle));
    if (stream->device == current_device) events.push_back(stream->worker->record());
  });
  return events;
}

}  // namespace

bool is_stream(cudaStream_t stream) {
  {
    DefaultStreams& streams = default_streams();
    const std::lock_guard lock(streams.mutex);
    for (const auto& [device, one] : streams.of_devices) {
      if (stream == &one) return true;
    }
  }
  return known("streams", stream);
}

// CUDA C++ Programming Guide 13.0, "Stream and Event Behavior": a launch is refused on a stream of
// another device than the current one. A copy is not, but none here is meant to be.
cudaError_t submit(cudaStream_t stream, std::function<void()> task) {
  stream = stream_of(stream);
  if (stream->device != current_device) {
    seen().violate("work for a stream of another device than the current one");
    return result(cudaErrorInvalidResourceHandle);
  }
  stream->worker->submit([task = std::move(task), device = stream->device] {
    const auto delay = FakeCuda::instance().draw_delay();
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    if (seen().device_error(device) == cudaSuccess) task();
  });
  return cudaSuccess;
}

// cudaLaunchKernel: the same guide, "Compute Capabilities", has the limits of a grid and a block.
cudaError_t launch(const std::type_info& kernel, dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, std::function<void()> thread) {
  const InFake in_fake;
  if (const cudaError_t planned = enter("cudaLaunchKernel", stream); planned != cudaSuccess) {
    return planned;
  }
  NEED_STREAM(stream);
  seen().note_launch(kernel.name());
  const unsigned threads = block.x * block.y * block.z;
  if (shared_bytes != 0 || threads == 0 || threads > 1024 || grid.x == 0 || grid.y > 65535 ||
      grid.z > 65535) {
    seen().violate("a kernel is launched with a grid or block of no valid size");
    return result(cudaErrorInvalidConfiguration);
  }
  return submit(stream, [=, body = std::move(thread)] { run_grid(grid, block, body); });
}

void synchronize_device() {
  for (const zerorun::Event& event : work_of_device()) wait_for(event);
}

bool device_is_idle() {
  const std::vector<zerorun::Event> work = work_of_device();
  return std::ranges::all_of(work, [](const zerorun::Event& event) { return event.ready(); });
}

}  // namespace zerorun::fake

// Of the calling thread; reset by it.
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

// Makes no context.
cudaError_t cudaDriverGetVersion(int* version) {
  ENTER_HOST();
  *version = seen().driver();
  return cudaSuccess;
}

// Makes no context.
cudaError_t cudaRuntimeGetVersion(int* version) {
  ENTER_HOST();
  *version = 13000;
  return cudaSuccess;
}

// An error where there is none, or the driver is too old: the enumerators say so.
cudaError_t cudaGetDeviceCount(int* count) {
  ENTER_HOST();
  if (seen().driver() < 12000) return result(cudaErrorInsufficientDriver);
  *count = seen().devices();
  return *count == 0 ? result(cudaErrorNoDevice) : cudaSuccess;
}

// The thread's current device; makes no context.
cudaError_t cudaGetDevice(int* device) {
  ENTER_HOST();
  *device = current_device;
  return cudaSuccess;
}

// From CUDA 12 on, makes the context at once; waits for nothing.
cudaError_t cudaSetDevice(int device) {
  ENTER_HOST();
  if (!valid_device(device)) return result(cudaErrorInvalidDevice);
  current_device = device;
  use_device();
  return cudaSuccess;
}

// Refuses numbers of no device; makes no context.
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

// Refuses numbers of no device; makes no context.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  ENTER_HOST();
  if (!valid_device(device)) return result(cudaErrorInvalidDevice);
  *value = attribute == cudaDevAttrMultiProcessorCount ? 132 : 1;
  return cudaSuccess;
}

// Lower numbers go first; the values are those of compute capability 9.0.
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  ENTER();
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

// No device is its own peer.
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  ENTER_HOST();
  if (!valid_device(device) || !valid_device(peer)) return result(cudaErrorInvalidDevice);
  *can = are_peers(device, peer) ? 1 : 0;
  return cudaSuccess;
}

// On the current device, whose context it makes.
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  ENTER();
  return make_stream(stream);
}

// The same; a priority out of range is clamped there, and no use here.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned /*flags*/, int priority) {
  ENTER();
  if (priority > 0 || priority < -5) seen().violate("a stream's priority is out of range");
  return make_stream(stream);
}

// Returns at once there; waits for the stream's work here, which nobody may rely on.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  ENTER_UNDO(stream);
  use_device();
  if (!seen().release("streams", stream)) return result(cudaErrorInvalidResourceHandle);
  delete stream;
  return planned;
}

// Waits for all of the stream's work. An error is told when that is over: no copy is under way.
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const InFake in_fake;
  const cudaError_t planned = enter(__func__, stream);
  spoil_capture(__func__);
  NEED_STREAM(stream);
  const cudaError_t waited = wait_for(stream->worker->record());
  return planned != cudaSuccess ? planned : waited;
}

// cudaErrorNotReady while there is work, which is kept as the last error.
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  ENTER(stream);
  spoil_capture(__func__);
  NEED_STREAM(stream);
  return result(stream->worker->record().ready() ? cudaSuccess : cudaErrorNotReady);
}

// Swaps the thread's mode and the argument.
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  ENTER_HOST();
  std::swap(capture_mode, *mode);
  return cudaSuccess;
}

// For what the event stands for now, on whatever device; nothing if it was never recorded.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  ENTER(stream);
  NEED_STREAM(stream);
  NEED("events", event);
  stream->worker->wait(event->last);
  return cudaSuccess;
}

// On the current device; without cudaEventBlockingSync a wait spins.
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  ENTER();
  if ((flags & cudaEventBlockingSync) == 0) seen().violate("an event whose waits take a core each");
  *event = new CUevent_st{{}, current_device};
  use_device();
  seen().hold("events", *event);
  return cudaSuccess;
}

// Does not wait for the event.
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  ENTER_UNDO();
  use_device();
  if (!seen().release("events", event)) return result(cudaErrorInvalidResourceHandle);
  delete event;
  return planned;
}

// Stands for the stream's work so far; refused on a stream of another device.
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  ENTER(stream);
  NEED("events", event);
  NEED_STREAM(stream);
  if (event->device != stream->device) {
    seen().violate("an event is recorded on a stream of another device");
    return result(cudaErrorInvalidResourceHandle);
  }
  event->last = stream->worker->record();
  return cudaSuccess;
}

// cudaErrorNotReady while there is work; ready if it was never recorded.
cudaError_t cudaEventQuery(cudaEvent_t event) {
  ENTER();
  spoil_capture(__func__);
  NEED("events", event);
  return result(event->last.ready() ? cudaSuccess : cudaErrorNotReady);
}

// Waits for what the event stands for; also tells errors of that work.
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const InFake in_fake;
  const cudaError_t planned = enter(__func__);
  spoil_capture(__func__);
  NEED("events", event);
  const cudaError_t waited = wait_for(event->last);
  return planned != cudaSuccess ? planned : waited;
}
