#include "device/cuda/cuda_memory.h"

#include <algorithm>
#include <cstdint>
#include <new>

#include "core/check.h"
#include "device/cuda/cuda_error.h"
#include "device/cuda/current_device.h"
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
    // An allocation must not wait for another stream's work to end, which may be a peer's to do.
    int waits = 0;
    if (result == cudaSuccess) {
      result = cudaMemPoolSetAttribute(pool_, cudaMemPoolReuseAllowInternalDependencies, &waits);
    }
    if (result != cudaSuccess) cudaMemPoolDestroy(pool_);
  }
  if (result == cudaSuccess) return;
  cudaStreamDestroy(stream_);
  check_cuda(result, "making a memory pool");
}

CudaPool::~CudaPool() {
  const CurrentDevice current(device_, std::nothrow);
  trim();
  cudaMemPoolDestroy(pool_);
  cudaStreamDestroy(stream_);
}

void* CudaPool::allocate(size_t nbytes, cudaStream_t stream) {
  const CurrentDevice current(device_);
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

void CudaPool::free(void* data, cudaStream_t stream) noexcept {
  const CurrentDevice current(device_, std::nothrow);
  cudaFreeAsync(data, stream);
}

void CudaPool::trim() noexcept {
  const CurrentDevice current(device_, std::nothrow);
  std::multimap<size_t, void*> kept;
  {
    const std::lock_guard lock(mutex_);
    kept.swap(kept_);
  }
  for (const auto& [nbytes, data] : kept) cudaFreeAsync(data, stream_);
  // Others can have it only when it is free, and not the pool's any more.
  cudaStreamSynchronize(stream_);
  cudaMemPoolTrimTo(pool_, 0);
}

void* CudaPool::allocate(size_t nbytes) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = kept_.find(nbytes); found != kept_.end()) {
      void* const data = found->second;
      kept_.erase(found);
      return data;
    }
  }
  const CurrentDevice current(device_);
  void* const data = allocate(nbytes, stream_);
  if (data == nullptr) return nullptr;
  const cudaError_t result = cudaStreamSynchronize(stream_);
  if (result != cudaSuccess) {
    cudaFreeAsync(data, stream_);
    check_cuda(result, "cudaStreamSynchronize");
  }
  return data;
}

void CudaPool::free(void* data, size_t nbytes) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    kept_.emplace(nbytes, data);
  } catch (const std::bad_alloc&) {
    free(data, stream_);
  }
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
  const std::lock_guard lock(mutex_);
  for (const auto& [nbytes, data] : kept_) available.free += nbytes;
  return available;
}

PinnedBlock allocate_pinned_host(int device, size_t nbytes) {
  const CurrentDevice current(device);
  void* data = nullptr;
  const cudaError_t result = cudaHostAlloc(&data, std::max<size_t>(nbytes, 1),
                                           cudaHostAllocPortable | cudaHostAllocMapped);
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return {};
  }
  check_cuda(result, "cudaHostAlloc");
  return {data, device};
}

void PinnedBlock::free() const noexcept {
  const CurrentDevice current(device, std::nothrow);
  cudaFreeHost(data);
}

bool is_device_memory(const void* data) {
  cudaPointerAttributes attributes = {};
  check_cuda(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes");
  return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
}

}  // namespace zerorun
