#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "zerorun/device.h"
#include "zerorun/engine.h"
#include "zerorun/tensor.h"

namespace zerorun {

class PinnedArena;

// The tensors of a chunk of a shard: the master and the optimizer states.
struct StateLayout {
  int64_t numel = 0;  // elements of the chunk
  std::vector<StateSpec> tensors;
};

// needed: the caller reads the content of the chunk. overwritten: the content is undefined, and the
// caller writes either all of it before the release, or nothing.
enum class Content : uint8_t { needed, overwritten };

// Stores optimizer states between steps, chunk by chunk: in the device's memory, in pinned host
// memory or in a file. The engine acquires a chunk before it reads or writes it and releases it
// afterwards. A new store is filled with zeros.
//
// Chunks are used in the order in which they are acquired. Each is released before it is acquired
// again.
class StateStore {
 public:
  virtual ~StateStore() = default;
  // The views of the chunk's tensors, in the order of its layout. They are valid for work on
  // `stream` between this call and the release.
  virtual std::vector<TensorView> acquire(int chunk, Stream& stream, Content content) = 0;
  // `changed`: the number of tensors, from the first on, that were written. The others are
  // unchanged.
  virtual void release(int chunk, Stream& stream, size_t changed) = 0;
  // Announces the chunks that are likely to be acquired next, in this order, so that they can be
  // read ahead. A wrong guess only costs time.
  virtual void expect(std::span<const int> /*chunks*/) {}
  // Access to the chunk in place, for reading and writing, while no chunk is acquired. After
  // writing, call accept_changes(). Then the views, which are valid as long as the store, are for
  // reading only.
  virtual std::vector<TensorView> stored(int chunk) = 0;
  virtual void accept_changes() {}
  // offload() moves states from a GPU's memory to host memory, until reload() or the next use.
  // Views obtained earlier become invalid. The default does nothing, for stores that do not use the
  // device's memory.
  virtual void offload() {}
  virtual void reload() {}
};

// Makes a store in the device's memory.
std::unique_ptr<StateStore> make_device_state_store(Device& device,
                                                    std::span<const StateLayout> chunks);
// Makes a store in pinned host memory.
std::unique_ptr<StateStore> make_host_state_store(PinnedArena& arena,
                                                  std::span<const StateLayout> chunks);
// The bytes of the arena that the states of a chunk take.
size_t host_state_nbytes(const StateLayout& chunk);

}  // namespace zerorun
