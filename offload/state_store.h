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

// needed: the chunk's content is read. overwritten: it is undefined, and the caller writes all of
// it before the release, or nothing.
enum class Content : uint8_t { needed, overwritten };

// Stores optimizer states between steps, chunk by chunk. The engine acquires a chunk before it
// reads or writes it and releases it afterwards; in between the store keeps the bytes in this
// device's memory, in pinned host memory or in a file. A new store is filled with zeros.
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
  // `changed`: the first so many tensors were written to; the others are as before.
  virtual void release(int chunk, Stream& stream, size_t changed) = 0;
  void release(int chunk, Stream& stream) {
    release(chunk, stream, std::numeric_limits<size_t>::max());
  }
  // The chunks that are likely to be acquired next, in this order: reading them may begin. A wrong
  // guess costs time only.
  virtual void expect(std::span<const int> /*chunks*/) {}
  // The chunk where it is stored, to read and to write, while nothing is acquired. After writing:
  // accept_changes. From then on the views, which last as long as the store, are for reading.
  virtual std::vector<TensorView> stored(int chunk) = 0;
  virtual void accept_changes() {}
  // Moves what is in a GPU's memory to host memory, until reload() or the next use. Views that were
  // obtained before end. Default: nothing is in the device's memory.
  virtual void offload() {}
  virtual void reload() {}
};

// Stores states in the device's memory.
std::unique_ptr<StateStore> make_device_state_store(Device& device,
                                                    std::span<const StateLayout> chunks);
// Stores states in host memory.
std::unique_ptr<StateStore> make_host_state_store(PinnedArena& arena,
                                                  std::span<const StateLayout> chunks);
// Bytes of `arena` that the states of a chunk take.
size_t host_state_nbytes(const StateLayout& chunk);

}  // namespace zerorun
