#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "zerorun/device.h"
#include "zerorun/engine.h"
#include "zerorun/tensor.h"

namespace zerorun {

// The tensors kept for a shard: the master copy and the optimizer's states.
struct StateLayout {
  int64_t numel = 0;  // of the shard
  std::vector<StateSpec> tensors;
};

// Where the shards' states rest between steps. The engine acquires a shard before it reads or
// writes it and releases it afterwards; where the bytes are in between (this device, pinned host
// memory, a file) is the store's affair.
class StateStore {
 public:
  virtual ~StateStore() = default;
  // Zero-filled states of one more shard; returns its index.
  virtual int add(const StateLayout& layout) = 0;
  // The views, in the order of the layout's tensors, valid until release.
  virtual std::vector<TensorView> acquire(int shard, Stream& stream) = 0;
  virtual void release(int shard, Stream& stream) = 0;
};

// States stay in the device's memory.
std::unique_ptr<StateStore> make_device_state_store(Device& device);

}  // namespace zerorun
