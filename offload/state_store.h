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

class HostSlab;

// The tensors kept for a piece of a shard: the master copy and the optimizer's states.
struct StateLayout {
  int64_t numel = 0;  // of the piece
  std::vector<StateSpec> tensors;
};

// Whether what a piece holds is read; if not, all of it is written before its release, or nothing.
enum class Content : uint8_t { needed, overwritten };

// Where optimizer states rest between steps, piece by piece. The engine acquires a piece before it
// reads or writes it and releases it afterwards; where the bytes are in between (this device,
// pinned host memory, a file) is the store's affair. A new store is filled with zeros.
//
// Pieces are used in the order in which they are acquired; each is released before it is acquired
// again.
class StateStore {
 public:
  virtual ~StateStore() = default;
  // The views of the piece, in the order of its layout's tensors. They hold the piece as soon as
  // `stream` gets there, until it gets to the release.
  virtual std::vector<TensorView> acquire(int piece, Stream& stream, Content content) = 0;
  std::vector<TensorView> acquire(int piece, Stream& stream) {
    return acquire(piece, stream, Content::needed);
  }
  // `changed`: the first so many tensors were written to; the others keep what they held before.
  virtual void release(int piece, Stream& stream, size_t changed) = 0;
  void release(int piece, Stream& stream) {
    release(piece, stream, std::numeric_limits<size_t>::max());
  }
  // These are likely to be acquired next, in this order: what takes time may begin. Costs nothing
  // but time when it turns out otherwise.
  virtual void expect(std::span<const int> /*pieces*/) {}
  // Views of a piece at rest, to read and to write; nothing may be acquired. After writing:
  // accept_changes. From then on the views, which last as long as the store, are for reading.
  virtual std::vector<TensorView> rest(int piece) = 0;
  virtual void accept_changes() {}
};

// States stay in the device's memory.
std::unique_ptr<StateStore> make_device_state_store(Device& device,
                                                    std::span<const StateLayout> pieces);
// States rest in host memory.
std::unique_ptr<StateStore> make_host_state_store(HostSlab& slab,
                                                  std::span<const StateLayout> pieces);
// Bytes of `slab` that the states of a piece take.
size_t host_state_nbytes(const StateLayout& piece);

}  // namespace zerorun
