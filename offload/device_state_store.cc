#include <utility>

#include "core/check.h"
#include "offload/state_store.h"

namespace zerorun {

namespace {

class DeviceStateStore final : public StateStore {
 public:
  explicit DeviceStateStore(Device& device) : device_(device) {}

  int add(const StateLayout& layout) override {
    Shard shard;
    for (const StateSpec& spec : layout.tensors) {
      TensorView view{nullptr, spec.numel(layout.numel), spec.dtype};
      Buffer buffer = device_.allocate(view.nbytes(), MemoryCategory::optimizer);
      view.data = buffer.data();
      device_.fill(device_.inline_stream(), view, 0.0F);
      shard.buffers.push_back(std::move(buffer));
      shard.views.push_back(view);
    }
    shards_.push_back(std::move(shard));
    return static_cast<int>(shards_.size()) - 1;
  }

  std::vector<TensorView> acquire(int shard, Stream& /*stream*/) override {
    return shards_.at(static_cast<size_t>(shard)).views;
  }
  void release(int /*shard*/, Stream& /*stream*/) override {}

 private:
  struct Shard {
    std::vector<Buffer> buffers;
    std::vector<TensorView> views;
  };
  Device& device_;
  std::vector<Shard> shards_;
};

}  // namespace

std::unique_ptr<StateStore> make_device_state_store(Device& device) {
  return std::make_unique<DeviceStateStore>(device);
}

}  // namespace zerorun
