// The fake CUDA runtime: see include/cuda_runtime.h.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "device/cpu/cpu_stream.h"
#include "tests/cuda/fake/fake_cuda.h"

struct CUstream_st {
  std::unique_ptr<zerorun::CpuStream> worker;
  int device = 0;
};
struct CUevent_st {
  zerorun::Event last;  // recorded
  int device = 0;
};
struct CUmemPoolHandle_st {
  int device = 0;
};

namespace {

using zerorun::fake::FakeCuda;

FakeCuda& seen() { return FakeCuda::instance(); }

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

// Counts the call; not success when the test wants it to fail.
cudaError_t enter(const char* name, const void* stream = nullptr) {
  return result(static_cast<cudaError_t>(seen().enter(name, stream)));
}

#define ENTER(...)                                                              \
  do {                                                                          \
    if (const cudaError_t planned = enter(__func__ __VA_OPT__(, ) __VA_ARGS__); \
        planned != cudaSuccess) {                                               \
      return planned;                                                           \
    }                                                                           \
  } while (false)

bool known(const char* kind, const void* handle) {
  if (seen().holds(kind, handle)) return true;
  seen().violate(std::string("a call gets a handle that is not one of ") + kind);
  return false;
}
#define NEED(kind, handle) \
  if (!known(kind, handle)) return result(cudaErrorInvalidResourceHandle)

bool valid_device(int device) { return device >= 0 && device < seen().devices(); }

// Blocks of device memory, and of host memory that the device may read.
class Blocks {
 public:
  void* add(size_t bytes, bool on_device) {
    void* const data = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
    if (data == nullptr) return nullptr;
    std::memset(data, 0xcd, bytes);  // as on a GPU, it holds anything
    const std::lock_guard lock(mutex_);
    blocks_[static_cast<std::byte*>(data)] = {bytes, on_device};
    return data;
  }
  // The block's size; its memory is released, so that AddressSanitizer sees later uses.
  size_t remove(void* data) {
    size_t bytes = 0;
    {
      const std::lock_guard lock(mutex_);
      const auto found = blocks_.find(static_cast<std::byte*>(data));
      if (found == blocks_.end()) return 0;
      bytes = found->second.bytes;
      blocks_.erase(found);
    }
    std::memset(data, 0xdd, bytes);
    std::free(data);
    return bytes;
  }
  bool on_device(const void* data, size_t bytes) const {
    const std::lock_guard lock(mutex_);
    const auto* first = static_cast<const std::byte*>(data);
    auto found = blocks_.upper_bound(const_cast<std::byte*>(first));
    if (found == blocks_.begin()) return false;
    --found;
    return found->second.on_device && first + bytes <= found->first + found->second.bytes;
  }

 private:
  struct Block {
    size_t bytes;
    bool on_device;
  };
  mutable std::mutex mutex_;
  std::map<std::byte*, Block> blocks_;
};

Blocks& blocks() {
  static Blocks all;
  return all;
}

// A stream's error becomes the runtime's.
cudaError_t wait_for(const zerorun::Event& event) {
  try {
    event.synchronize();
    return cudaSuccess;
  } catch (const std::exception& error) {
    seen().violate(std::string("work on a stream failed: ") + error.what());
    return result(cudaErrorLaunchFailure);
  }
}

cudaError_t make_stream(cudaStream_t* stream) {
  auto made = std::make_unique<CUstream_st>();
  made->worker = zerorun::make_worker_stream("fake-cuda");
  made->device = current_device;
  *stream = made.release();
  seen().hold("streams", *stream);
  return cudaSuccess;
}

}  // namespace

namespace zerorun::fake {

bool add_device_memory(void** data, size_t bytes) {
  if (!seen().take_memory(bytes)) return false;
  *data = blocks().add(bytes, true);
  seen().hold("device memory", *data);
  return true;
}

bool remove_device_memory(void* data) {
  if (!seen().release("device memory", data)) return false;
  seen().give_memory(blocks().remove(data));
  return true;
}

cudaError_t submit(cudaStream_t stream, std::function<void()> task) {
  if (stream->device != current_device) {
    seen().violate("work for a stream of another device than the current one");
  }
  stream->worker->submit([task = std::move(task)] {
    const auto delay = FakeCuda::instance().draw_delay();
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    task();
  });
  return cudaSuccess;
}

cudaError_t launch(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                   std::function<void()> thread) {
  if (const cudaError_t planned = enter("cudaLaunchKernel", stream); planned != cudaSuccess) {
    return planned;
  }
  NEED("streams", stream);
  const unsigned threads = block.x * block.y * block.z;
  if (shared_bytes != 0 || threads == 0 || threads > 1024 || grid.x == 0 || grid.y > 65535 ||
      grid.z > 65535) {
    seen().violate("a kernel is launched with a grid or block of no valid size");
    return result(cudaErrorInvalidValue);
  }
  return submit(stream, [=, body = std::move(thread)] { run_grid(grid, block, body); });
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
  ENTER();
  *version = 13020;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  ENTER();
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  ENTER();
  *count = seen().devices();
  return *count == 0 ? result(cudaErrorNoDevice) : cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  ENTER();
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  ENTER();
  if (!valid_device(device)) return result(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  ENTER();
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
  ENTER();
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
  ENTER();
  *can = valid_device(device) && valid_device(peer) ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  ENTER();
  *free = seen().free_memory();
  *total = seen().memory();
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
  ENTER(stream);
  if (!seen().release("streams", stream)) return result(cudaErrorInvalidResourceHandle);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  ENTER(stream);
  NEED("streams", stream);
  return wait_for(stream->worker->record());
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  ENTER(stream);
  NEED("streams", stream);
  return stream->worker->record().ready() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  ENTER(stream);
  NEED("streams", stream);
  NEED("events", event);
  stream->worker->wait(event->last);
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  ENTER(stream);
  NEED("streams", stream);
  return zerorun::fake::submit(stream, [=] { function(argument); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  ENTER();
  *event = new CUevent_st{{}, current_device};
  seen().hold("events", *event);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  ENTER();
  if (!seen().release("events", event)) return result(cudaErrorInvalidResourceHandle);
  delete event;
  return cudaSuccess;
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
  NEED("events", event);
  return event->last.ready() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ENTER();
  NEED("events", event);
  return wait_for(event->last);
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  ENTER();
  if (!valid_device(properties->location.id)) return result(cudaErrorInvalidDevice);
  *pool = new CUmemPoolHandle_st{properties->location.id};
  seen().hold("pools", *pool);
  return cudaSuccess;
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  ENTER();
  if (!seen().release("pools", pool)) return result(cudaErrorInvalidValue);
  delete pool;
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr /*attribute*/,
                                    void* /*value*/) {
  ENTER();
  NEED("pools", pool);
  return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr /*attribute*/,
                                    void* value) {
  ENTER();
  NEED("pools", pool);
  *static_cast<uint64_t*>(value) = 0;
  return cudaSuccess;
}

cudaError_t cudaMallocFromPoolAsync(void** data, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  ENTER(stream);
  NEED("pools", pool);
  NEED("streams", stream);
  if (bytes == 0) seen().violate("memory of 0 bytes is asked for");
  if (!zerorun::fake::add_device_memory(data, bytes)) return result(cudaErrorMemoryAllocation);
  return cudaSuccess;
}

cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  ENTER(stream);
  NEED("streams", stream);
  if (!seen().release("device memory", data)) return result(cudaErrorInvalidValue);
  stream->worker->submit([data] { seen().give_memory(blocks().remove(data)); });
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned /*flags*/) {
  ENTER();
  *data = blocks().add(bytes, false);
  if (*data == nullptr) return result(cudaErrorMemoryAllocation);
  seen().hold("pinned memory", *data);
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* data) {
  ENTER();
  if (!seen().release("pinned memory", data)) return result(cudaErrorInvalidValue);
  blocks().remove(data);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  ENTER(stream);
  NEED("streams", stream);
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (kind != cudaMemcpyDefault && (to_device != blocks().on_device(to, bytes) ||
                                    from_device != blocks().on_device(from, bytes))) {
    seen().violate("a copy's kind does not match where its memory lies");
  }
  return zerorun::fake::submit(stream, [=] { std::memmove(to, from, bytes); });
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  ENTER(stream);
  NEED("streams", stream);
  if (!blocks().on_device(data, bytes)) seen().violate("memset outside of device memory");
  return zerorun::fake::submit(stream, [=] { std::memset(data, value, bytes); });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  ENTER();
  attributes->type =
      blocks().on_device(data, 1) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}
