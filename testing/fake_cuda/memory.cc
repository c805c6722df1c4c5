// Memory of the fake CUDA runtime. The sources are those of runtime.cc.
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "testing/fake_cuda/runtime_call.h"

namespace zerorun::fake {

// Device memory that a pool holds, of which its blocks are a part. What they give back stays here
// up to the threshold, or until it is trimmed. Lives as long as the pool or a block.
class Reserve {
 public:
  Reserve() = default;
  Reserve(const Reserve&) = delete;
  Reserve& operator=(const Reserve&) = delete;
  ~Reserve() { seen().give_memory(reserved_); }

  bool take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    const size_t more = bytes - std::min(bytes, reserved_ - used_);
    if (!seen().take_memory(more)) return false;
    reserved_ += more;
    used_ += bytes;
    return true;
  }
  void trim(size_t bytes) {
    const std::lock_guard lock(mutex_);
    used_ -= bytes;
    shrink(threshold_);
  }
  void trim_to(size_t keep) {
    const std::lock_guard lock(mutex_);
    shrink(keep);
  }
  void set_threshold(size_t bytes) {
    const std::lock_guard lock(mutex_);
    threshold_ = bytes;
  }
  size_t reserved() const {
    const std::lock_guard lock(mutex_);
    return reserved_;
  }
  size_t used() const {
    const std::lock_guard lock(mutex_);
    return used_;
  }

 private:
  void shrink(size_t keep) {
    const size_t rest = std::clamp(keep, used_, reserved_);
    seen().give_memory(reserved_ - rest);
    reserved_ = rest;
  }

  mutable std::mutex mutex_;  // guards all
  size_t threshold_ = 0;
  size_t reserved_ = 0;
  size_t used_ = 0;
};

}  // namespace zerorun::fake

struct CUmemPoolHandle_st {
  int device = 0;
  std::set<int> readers{};  // other devices that may use its memory; set before there is any work
  std::shared_ptr<zerorun::fake::Reserve> reserve = std::make_shared<zerorun::fake::Reserve>();
};

using namespace zerorun::fake;

namespace {

constexpr size_t kAlignment = 512;  // of a pool's blocks
constexpr size_t kPage = 4096;

// Blocks of device memory, and of host memory that the device may read.
class Blocks {
 public:
  // It begins `begin` bytes after a multiple of `alignment`.
  void* add(size_t bytes, bool on_device, size_t alignment, cudaMemPool_t pool = nullptr,
            size_t begin = 0) {
    auto* const memory = static_cast<std::byte*>(
        std::aligned_alloc(alignment, (begin + bytes + alignment - 1) / alignment * alignment));
    if (memory == nullptr) return nullptr;
    std::byte* const data = memory + begin;
    std::memset(data, 0xcd, bytes);  // as on a GPU, it holds anything
    const std::lock_guard lock(mutex_);
    blocks_[data] = {bytes, on_device, pool, pool == nullptr ? nullptr : pool->reserve, begin};
    return data;
  }
  // Its memory is released, so that AddressSanitizer sees later uses.
  void remove(void* data) {
    Block block{};
    {
      const std::lock_guard lock(mutex_);
      const auto found = blocks_.find(static_cast<std::byte*>(data));
      if (found == blocks_.end()) return;
      block = found->second;
      blocks_.erase(found);
    }
    std::memset(data, 0xdd, block.bytes);
    std::free(static_cast<std::byte*>(data) - block.begin);
    if (block.reserve) {
      block.reserve->trim(block.bytes);
    } else if (block.on_device) {
      seen().give_memory(block.bytes);
    }
  }
  bool on_device(const void* data, size_t bytes) const {
    const std::optional<Block> block = find(data, bytes);
    return block && block->on_device;
  }
  // True if kernels on `device` may use it: memory of a pool is its own device's, unless shared.
  bool reachable(const void* data, int device) const {
    const std::optional<Block> block = find(data, 1);
    if (!block || block->pool == nullptr) return true;
    return block->pool->device == device || block->pool->readers.contains(device);
  }
  // Memory of another library, which that says is on the device.
  void adopt(const void* data, size_t bytes) {
    disown(data);
    const std::lock_guard lock(mutex_);
    adopted_[static_cast<const std::byte*>(data)] = {bytes, true, nullptr, nullptr, 0};
    seen().take_adopted(bytes);
  }
  void disown(const void* data) {
    const std::lock_guard lock(mutex_);
    const auto found = adopted_.find(static_cast<const std::byte*>(data));
    if (found == adopted_.end()) return;
    seen().give_adopted(found->second.bytes);
    adopted_.erase(found);
  }
  // Ordinary memory, which the device cannot address.
  bool pageable(const void* data, size_t bytes) const { return !find(data, bytes); }

 private:
  struct Block {
    size_t bytes;
    bool on_device;
    cudaMemPool_t pool;
    std::shared_ptr<Reserve> reserve;
    size_t begin;
  };

  using Map = std::map<const std::byte*, Block>;

  // The block that all of it is in.
  std::optional<Block> find(const void* data, size_t bytes) const {
    const std::lock_guard lock(mutex_);
    const auto* const first = static_cast<const std::byte*>(data);
    for (const Map* map : {&blocks_, &adopted_}) {
      const auto next = map->upper_bound(first);
      if (next == map->begin()) continue;
      const auto& [begin, block] = *std::prev(next);
      if (first + bytes <= begin + block.bytes) return block;
    }
    return std::nullopt;
  }

  mutable std::mutex mutex_;
  Map blocks_;
  Map adopted_;
};

Blocks& blocks() {
  static Blocks all;
  return all;
}

}  // namespace

namespace zerorun::fake {

namespace {

bool add_from(cudaMemPool_t pool, void** data, size_t bytes, size_t alignment) {
  if (!(pool == nullptr ? seen().take_memory(bytes) : pool->reserve->take(bytes))) return false;
  *data = blocks().add(bytes, true, alignment, pool);
  seen().hold("device memory", *data);
  return true;
}

}  // namespace

bool add_device_memory(void** data, size_t bytes, size_t alignment) {
  return add_from(nullptr, data, bytes, alignment);
}

bool addressable(const void* data, size_t bytes) { return !blocks().pageable(data, bytes); }

bool reachable(const void* data, int device) { return blocks().reachable(data, device); }

bool remove_device_memory(void* data) {
  if (!seen().release("device memory", data)) return false;
  blocks().remove(data);
  return true;
}

void adopt_device_memory(const void* data, size_t bytes) { blocks().adopt(data, bytes); }

void disown_device_memory(const void* data) { blocks().disown(data); }

}  // namespace zerorun::fake

// Of the current device; what a pool has reserved is not free.
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  ENTER();
  *free = seen().free_memory();
  *total = seen().memory();
  return cudaSuccess;
}
// Of the device that the properties name.
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  ENTER();
  if (!valid_device(properties->location.id)) return result(cudaErrorInvalidDevice);
  *pool = new CUmemPoolHandle_st{properties->location.id};
  seen().hold("pools", *pool);
  return cudaSuccess;
}

// Does not wait for blocks that are in use, which keep what they need.
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  ENTER_UNDO();
  if (!seen().release("pools", pool)) return result(cudaErrorInvalidValue);
  delete pool;
  return planned;
}

// The pool's own device has access and keeps it. (cudaErrorInvalidDevice for a device that cannot
// reach it: cuda.h, cuMemPoolSetAccess.)
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* access,
                                 size_t count) {
  ENTER();
  NEED("pools", pool);
  for (size_t i = 0; i < count; ++i) {
    const int device = access[i].location.id;
    if (!valid_device(device) || !are_peers(device, pool->device)) {
      seen().violate("a device that cannot reach a pool's memory gets access to it");
      return result(cudaErrorInvalidDevice);
    }
    pool->readers.insert(device);
  }
  return cudaSuccess;
}

// Gives back what no block uses.
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep) {
  ENTER();
  NEED("pools", pool);
  pool->reserve->trim_to(keep);
  return cudaSuccess;
}

// The value is an int, or 64 bits for sizes; the used and reserved bytes cannot be set.
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  ENTER();
  NEED("pools", pool);
  if (attribute == cudaMemPoolAttrReleaseThreshold) {
    pool->reserve->set_threshold(*static_cast<uint64_t*>(value));
  } else if (attribute != cudaMemPoolReuseAllowInternalDependencies) {
    return result(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

// The value is 64 bits for sizes.
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  ENTER();
  NEED("pools", pool);
  const Reserve& reserve = *pool->reserve;
  *static_cast<uint64_t*>(value) =
      attribute == cudaMemPoolAttrUsedMemCurrent ? reserve.used() : reserve.reserved();
  return cudaSuccess;
}

// May be used when the stream gets there. cudaErrorMemoryAllocation if the device has no more.
cudaError_t cudaMallocFromPoolAsync(void** data, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  ENTER(stream);
  NEED("pools", pool);
  NEED_STREAM(stream);
  if (bytes == 0) seen().violate("memory of 0 bytes is asked for");
  if (!zerorun::fake::add_from(pool, data, bytes, kAlignment))
    return result(cudaErrorMemoryAllocation);
  return cudaSuccess;
}

// Freed when the stream gets there. Refuses what is not allocated.
cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  ENTER_UNDO(stream);
  NEED_STREAM(stream);
  if (!seen().release("device memory", data)) return result(cudaErrorInvalidValue);
  stream->worker->submit([data] { blocks().remove(data); });
  return planned;
}

// May wait for the whole device: CUDA C++ Programming Guide 13.0, "Implicit Synchronization". Large
// blocks begin a page; small ones, whatever that comment says, come from within one. From 512 GiB
// on drivers since 580 refuse (nvos_create_alloc; NVIDIA/open-gpu-kernel-modules, pull request
// 1234).
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned flags) {
  ENTER();
  use_device();
  spoil_capture(__func__);
  synchronize_device();
  if ((flags & ~(cudaHostAllocPortable | cudaHostAllocMapped)) != 0) {
    seen().violate("cudaHostAlloc with a flag that does not exist");
  }
  constexpr size_t kTooLarge = size_t{512} << 30;
  if (bytes >= kTooLarge) return result(cudaErrorMemoryAllocation);
  constexpr size_t kLarge = size_t{1} << 20;
  *data = blocks().add(bytes, false, kPage, nullptr, bytes < kLarge ? kAlignment : 0);
  if (*data == nullptr) return result(cudaErrorMemoryAllocation);
  seen().hold("pinned memory", *data);
  return cudaSuccess;
}

// The same. Refuses what is not allocated.
cudaError_t cudaFreeHost(void* data) {
  ENTER_UNDO();
  use_device();
  spoil_capture(__func__);
  synchronize_device();
  if (!seen().release("pinned memory", data)) return result(cudaErrorInvalidValue);
  blocks().remove(data);
  return planned;
}

// Only of memory that is pinned; the flags must be 0.
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned flags) {
  ENTER();
  if (flags != 0 || blocks().pageable(host, 1)) return result(cudaErrorInvalidValue);
  *device = host;
  return cudaSuccess;
}

// "API synchronization behavior" there: from pageable memory it may read later, or now; to such
// memory it returns when the copy is over. The wrong kind is undefined.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  ENTER(stream);
  NEED_STREAM(stream);
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (kind != cudaMemcpyDefault && (to_device != blocks().on_device(to, bytes) ||
                                    from_device != blocks().on_device(from, bytes))) {
    seen().violate("a copy's kind does not match where its memory lies");
  }
  if (blocks().pageable(from, bytes)) {
    seen().enter("(copy from pageable memory)");
    // Now, whatever the stream still has to do: small copies are.
    const auto* const first = static_cast<const std::byte*>(from);
    return zerorun::fake::submit(stream, [to, now = std::vector(first, first + bytes)] {
      std::memmove(to, now.data(), now.size());
    });
  }
  zerorun::fake::submit(stream, [=] { std::memmove(to, from, bytes); });
  if (blocks().pageable(to, bytes)) stream->worker->synchronize();
  return cudaSuccess;
}

// Asynchronous; only of device memory here.
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  ENTER(stream);
  NEED_STREAM(stream);
  if (!blocks().on_device(data, bytes)) seen().violate("memset outside of device memory");
  return zerorun::fake::submit(stream, [=] { std::memset(data, value, bytes); });
}

// From CUDA 11 on, cudaMemoryTypeUnregistered for ordinary memory; undefined for what is freed.
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  ENTER();
  attributes->type = blocks().on_device(data, 1)  ? cudaMemoryTypeDevice
                     : blocks().pageable(data, 1) ? cudaMemoryTypeUnregistered
                                                  : cudaMemoryTypeHost;
  return cudaSuccess;
}
