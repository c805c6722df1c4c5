// Memory of the fake GPUs and of the host.
#include <sys/mman.h>

#include <cstring>
#include <map>
#include <mutex>

#include "testing/nccl_on_fake_cuda/fake.h"

namespace zerorun::fake_cuda {

namespace {

std::mutex mutex;  // guards blocks
std::map<uintptr_t, Block> blocks;

cudaError_t allocate(void** data, size_t bytes, cudaMemoryType type) {
  *data = nullptr;
  if (bytes == 0) return cudaSuccess;
  void* const got = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) return cudaErrorMemoryAllocation;
  *data = got;
  const auto begin = reinterpret_cast<uintptr_t>(*data);
  const std::lock_guard lock(mutex);
  blocks[begin] = {begin, bytes, type, current_device(), true};
  return cudaSuccess;
}

// Forgets the block that begins there.
cudaError_t release(void* data, cudaMemoryType type, bool allocated) {
  const std::lock_guard lock(mutex);
  const auto found = blocks.find(reinterpret_cast<uintptr_t>(data));
  if (found == blocks.end() || found->second.type != type || found->second.allocated != allocated) {
    return cudaErrorInvalidValue;
  }
  if (allocated) munmap(data, found->second.bytes);
  blocks.erase(found);
  return cudaSuccess;
}

}  // namespace

Block block_at(const void* address) {
  const auto place = reinterpret_cast<uintptr_t>(address);
  const std::lock_guard lock(mutex);
  auto next = blocks.upper_bound(place);
  if (next == blocks.begin()) return {};
  const Block& block = std::prev(next)->second;
  return place < block.begin + block.bytes ? block : Block{};
}

}  // namespace zerorun::fake_cuda

using namespace zerorun::fake_cuda;

cudaError_t cudaMalloc(void** data, size_t bytes) {
  return allocate(data, bytes, cudaMemoryTypeDevice);
}

cudaError_t cudaMallocFromPoolAsync(void** data, size_t bytes, cudaMemPool_t /*pool*/,
                                    cudaStream_t /*stream*/) {
  return cudaMalloc(data, bytes);
}

cudaError_t cudaFree(void* data) {
  return data == nullptr ? cudaSuccess : release(data, cudaMemoryTypeDevice, true);
}

cudaError_t cudaFreeAsync(void* data, cudaStream_t /*stream*/) { return cudaFree(data); }

cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned /*flags*/) {
  return allocate(data, bytes, cudaMemoryTypeHost);
}

cudaError_t cudaFreeHost(void* data) {
  return data == nullptr ? cudaSuccess : release(data, cudaMemoryTypeHost, true);
}

cudaError_t cudaHostRegister(void* data, size_t bytes, unsigned /*flags*/) {
  if (block_at(data).bytes > 0) return cudaErrorHostMemoryAlreadyRegistered;
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const std::lock_guard lock(mutex);
  blocks[begin] = {begin, bytes, cudaMemoryTypeHost, current_device(), false};
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* data) { return release(data, cudaMemoryTypeHost, false); }

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned /*flags*/) {
  *device = host;
  return block_at(host).type == cudaMemoryTypeHost ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  *attributes = {};
  attributes->type = block_at(data).type;
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind /*kind*/) {
  std::memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t /*stream*/) {
  return cudaMemcpy(to, from, bytes, kind);
}

cudaError_t cudaMemset(void* data, int value, size_t bytes) {
  std::memset(data, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t /*stream*/) {
  return cudaMemset(data, value, bytes);
}

// Pools have no memory of their own.
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* /*properties*/) {
  *pool = reinterpret_cast<cudaMemPool_t>(new char);
  return cudaSuccess;
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  delete reinterpret_cast<char*>(pool);
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t /*pool*/, cudaMemPoolAttr /*attribute*/,
                                    void* /*value*/) {
  return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t /*pool*/, cudaMemPoolAttr /*attribute*/,
                                    void* value) {
  *static_cast<uint64_t*>(value) = 0;
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t /*pool*/, const cudaMemAccessDesc* /*access*/,
                                 size_t /*count*/) {
  return cudaSuccess;
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t /*pool*/, size_t /*keep*/) { return cudaSuccess; }

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = size_t{80} << 30;
  return cudaSuccess;
}
