#include "device/cuda/cuda_memory.h"

#include <algorithm>
#include <cstdint>

#include "core/check.h"
#include "device/cuda/cuda_error.h"
#include "device/memory_ledger.h"

namespace zerorun {

CudaPool::CudaPool(int device) : device_(device) {
  const CurrentDevice current(device);
  int pools = 0;
  check_cuda(cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, device),
             "cudaDeviceGetAttribute");
  if (pools == 0) {
    fail<DeviceError>("cuda:{}: this GPU, or the way it is shared, has no stream-ordered memory",
                      device);
  }
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
             "cudaStreamCreateWithFlags");
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  cudaError_t result = cudaMemPoolCreate(&pool_, &properties);
  if (result == cudaSuccess) {
    uint64_t keep = UINT64_MAX;
    result = cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep);
    if (result != cudaSuccess) cudaMemPoolDestroy(pool_);
  }
  if (result == cudaSuccess) return;
  cudaStreamDestroy(stream_);
  check_cuda(result, "making a memory pool");
}

CudaPool::~CudaPool() {
  cudaStreamSynchronize(stream_);
  cudaMemPoolDestroy(pool_);
  cudaStreamDestroy(stream_);
}

void* CudaPool::take(size_t nbytes, cudaStream_t stream) {
  void* data = nullptr;
  const cudaError_t result =
      cudaMallocFromPoolAsync(&data, std::max<size_t>(nbytes, 1), pool_, stream);
  if (result == cudaSuccess) return data;
  if (result != cudaErrorMemoryAllocation && result != cudaErrorInvalidValue) {
    check_cuda(result, "cudaMallocFromPoolAsync");
  }
  cudaGetLastError();  // the caller reports it; the next call shall not meet it again
  return nullptr;
}

void* CudaPool::allocate(size_t nbytes) {
  const CurrentDevice current(device_);
  void* const data = take(nbytes, stream_);
  if (data == nullptr) return nullptr;
  const cudaError_t result = cudaStreamSynchronize(stream_);
  if (result != cudaSuccess) {
    free(data);
    check_cuda(result, "cudaStreamSynchronize");
  }
  return data;
}

void CudaPool::free(void* data) noexcept { cudaFreeAsync(data, stream_); }

Buffer CudaPool::scratch(const CudaStream& stream, size_t nbytes) {
  const CurrentDevice current(device_);
  void* const data = take(nbytes, stream.handle());
  if (data == nullptr) {
    fail<DeviceError>("cuda:{}: cannot allocate {} to work in", device_, format_bytes(nbytes));
  }
  return {data, nbytes, [self = shared_from_this(), data, handle = stream.handle()] {
            cudaFreeAsync(data, handle);
          }};
}

CudaPool::Free CudaPool::available() const {
  const CurrentDevice current(device_);
  Free available;
  check_cuda(cudaMemGetInfo(&available.free, &available.total), "cudaMemGetInfo");
  uint64_t reserved = 0;
  uint64_t used = 0;
  check_cuda(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &reserved),
             "cudaMemPoolGetAttribute");
  check_cuda(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrUsedMemCurrent, &used),
             "cudaMemPoolGetAttribute");
  available.free += reserved - std::min(used, reserved);
  return available;
}

PinnedBlock allocate_pinned_host(size_t nbytes) {
  void* data = nullptr;
  const cudaError_t result =
      cudaHostAlloc(&data, std::max<size_t>(nbytes, 1), cudaHostAllocDefault);
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return {};
  }
  check_cuda(result, "cudaHostAlloc");
  return {data};
}

bool is_device_memory(const void* data) {
  cudaPointerAttributes attributes = {};
  check_cuda(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes");
  return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
}

}  // namespace zerorun
