#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "zerorun/device.h"
#include "zerorun/engine.h"
#include "zerorun/tensor.h"

namespace zerorun {

class PinnedArena;

// The tensors kept for a chunk of a shard: the master copy and the optimizer's states.
struct StateLayout {
  int64_t numel = 0;  // of the chunk
  std::vector<StateSpec> tensors;
};

// Whether what a chunk holds is read; if not, all of it is written before its release, or nothing.
enum class Content : uint8_t { needed, overwritten };

// Where optimizer states rest between steps, chunk by chunk. The engine acquires a chunk before it
// reads or writes it and releases it afterwards; where the bytes are in between (this device,
// pinned host memory, a file) is the store's affair. A new store is filled with zeros.
//
// Chunks are used in the order in which they are acquired; each is released before it is acquired
// again.
class StateStore {
 public:
  virtual ~StateStore() = default;
  // The views of the chunk, in the order of its layout's tensors. They hold the chunk as soon as
  // `stream` gets there, until it gets to the release.
  virtual std::vector<TensorView> acquire(int chunk, Stream& stream, Content content) = 0;
  std::vector<TensorView> acquire(int chunk, Stream& stream) {
    return acquire(chunk, stream, Content::needed);
  }
  // `changed`: the first so many tensors were written to; the others keep what they held before.
  virtual void release(int chunk, Stream& stream, size_t changed) = 0;
  void release(int chunk, Stream& stream) {
    release(chunk, stream, std::numeric_limits<size_t>::max());
  }
  // These are likely to be acquired next, in this order: what takes time may begin. Costs nothing
  // but time when it turns out otherwise.
  virtual void expect(std::span<const int> /*chunks*/) {}
  // Views of a chunk at rest, to read and to write; nothing may be acquired. After writing:
  // accept_changes. From then on the views, which last as long as the store, are for reading.
  virtual std::vector<TensorView> rest(int chunk) = 0;
  virtual void accept_changes() {}
};

// States stay in the device's memory.
std::unique_ptr<StateStore> make_device_state_store(Device& device,
                                                    std::span<const StateLayout> chunks);
// States rest in host memory.
std::unique_ptr<StateStore> make_host_state_store(PinnedArena& arena,
                                                  std::span<const StateLayout> chunks);
// Bytes of `arena` that the states of a chunk take.
size_t host_state_nbytes(const StateLayout& chunk);

}  // namespace zerorun
