#include "device/cuda/runtime/cuda_memory.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <new>
#include <utility>

#include "core/check.h"
#include "device/cuda/runtime/cuda_error.h"
#include "device/cuda/runtime/current_device.h"
#include "os/open_file.h"

namespace zerorun {

CudaPool::CudaPool(int device, std::shared_ptr<MemoryLedger> ledger)
    : device_(device), ledger_(std::move(ledger)) {
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
    // An allocation must not wait for work of another stream, because that work may wait for a
    // peer.
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
  trim(SIZE_MAX);
  cudaMemPoolDestroy(pool_);
  cudaStreamDestroy(stream_);
}

void CudaPool::share_with(int peer) {
  const CurrentDevice current(device_);
  int can = 0;
  check_cuda(cudaDeviceCanAccessPeer(&can, peer, device_), "cudaDeviceCanAccessPeer");
  if (can == 0) return;
  cudaMemAccessDesc access = {};
  access.location.type = cudaMemLocationTypeDevice;
  access.location.id = peer;
  access.flags = cudaMemAccessFlagsProtReadWrite;
  check_cuda(cudaMemPoolSetAccess(pool_, &access, 1), "cudaMemPoolSetAccess");
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
  cudaGetLastError();  // clears the error, which the caller reports
  return nullptr;
}

void CudaPool::free(void* data, cudaStream_t stream) noexcept {
  const CurrentDevice current(device_, std::nothrow);
  cudaFreeAsync(data, stream);
}

bool CudaPool::end_step() {
  const std::lock_guard lock(mutex_);
  ++step_;
  return !kept_.empty() && is_unused(kept_.front());
}

void CudaPool::trim_unused() noexcept {
  trim_until([this](const Kept& next, size_t) { return !is_unused(next); });
}

void CudaPool::trim(size_t nbytes) noexcept {
  trim_until([nbytes](const Kept&, size_t given) { return given >= nbytes; });
}

void CudaPool::trim_until(const std::function<bool(const Kept&, size_t)>& enough) noexcept {
  const CurrentDevice current(device_, std::nothrow);
  {
    const std::lock_guard lock(mutex_);
    size_t given = 0;
    auto block = kept_.begin();
    for (; block != kept_.end() && !enough(*block, given); ++block) {
      cudaFreeAsync(block->data, stream_);
      given += block->nbytes;
    }
    kept_.erase(kept_.begin(), block);
    ledger_->remove(given, MemoryCategory::kept);
  }
  // Other allocators get the memory only after the frees have run and the pool is trimmed.
  cudaStreamSynchronize(stream_);
  cudaMemPoolTrimTo(pool_, 0);
}

// Takes the block that was freed last, so that surplus blocks of a size stay unused and are freed.
void* CudaPool::reuse(size_t nbytes) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(kept_.rbegin(), kept_.rend(),
                                  [&](const Kept& block) { return block.nbytes == nbytes; });
  if (found == kept_.rend()) return nullptr;
  void* const data = found->data;
  kept_.erase(std::next(found).base());
  ledger_->remove(nbytes, MemoryCategory::kept);
  return data;
}

void* CudaPool::allocate(size_t nbytes) {
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
    kept_.push_back({data, nbytes, step_});
    ledger_->add(nbytes, MemoryCategory::kept);
  } catch (const std::bad_alloc&) {
    free(data, stream_);
  }
}

size_t CudaPool::available() const {
  const CurrentDevice current(device_);
  size_t available = 0;
  size_t total = 0;
  check_cuda(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
  uint64_t reserved = 0;
  uint64_t used = 0;
  check_cuda(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &reserved),
             "cudaMemPoolGetAttribute");
  check_cuda(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrUsedMemCurrent, &used),
             "cudaMemPoolGetAttribute");
  available += reserved - std::min(used, reserved);
  return available + static_cast<size_t>(ledger_->use(MemoryCategory::kept).live_bytes);
}

Buffer allocate_pinned_host(int device, size_t nbytes) {
  const CurrentDevice current(device);
  void* block = nullptr;
  size_t room = nbytes + kDirectAlignment - 1;  // CUDA takes small blocks from within a page
  const cudaError_t result =
      cudaHostAlloc(&block, room, cudaHostAllocPortable | cudaHostAllocMapped);
  if (result == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return {};
  }
  check_cuda(result, "cudaHostAlloc");
  void* data = block;
  std::align(kDirectAlignment, nbytes, data, room);
  return {data, nbytes, [block, device] {
            const CurrentDevice freeing(device, std::nothrow);
            cudaFreeHost(block);
          }};
}

bool is_addressable(const void* data) {
  cudaPointerAttributes attributes = {};
  check_cuda(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes");
  return attributes.type != cudaMemoryTypeUnregistered;
}

}  // namespace zerorun
