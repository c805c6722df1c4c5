#include <utility>

#include "device/cpu/cpu_device.h"
#include "offload/pinned_arena.h"
#include "offload/state_store.h"

namespace zerorun {

namespace {

// States that are stored where they are used.
class ResidentStateStore : public StateStore {
 public:
  explicit ResidentStateStore(std::vector<std::vector<TensorView>> chunks)
      : chunks_(std::move(chunks)) {}

  std::vector<TensorView> acquire(int chunk, Stream& /*stream*/, Content /*content*/) override {
    return stored(chunk);
  }
  void release(int /*chunk*/, Stream& /*stream*/, size_t /*changed*/) override {}
  std::vector<TensorView> stored(int chunk) override {
    return chunks_.at(static_cast<size_t>(chunk));
  }

 protected:
  std::vector<std::vector<TensorView>> chunks_;
};

// In a device's memory, or for a while in the host's.
class DeviceStateStore final : public ResidentStateStore {
 public:
  DeviceStateStore(Device& device, std::vector<std::vector<TensorView>> chunks,
                   std::vector<Buffer> buffers)
      : ResidentStateStore(std::move(chunks)), device_(device), buffers_(std::move(buffers)) {}

  std::vector<TensorView> stored(int chunk) override {
    reload();
    return ResidentStateStore::stored(chunk);
  }

  void offload() override {
    if (offloaded_) return;
    move([&](size_t nbytes) { return device_.allocate_pinned(nbytes); },
         [&](TensorView view, std::byte* host) {
           device_.download(device_.inline_stream(), view, host);
         });
  }

  void reload() override {
    if (!offloaded_) return;
    move([&](size_t nbytes) { return device_.allocate(nbytes, MemoryCategory::optimizer); },
         [&](TensorView view, std::byte* data) {
           const std::byte* host = std::exchange(view.data, data);
           device_.upload(device_.inline_stream(), host, view);
         });
  }

 private:
  // Copies every tensor to memory that is made for it; without that all stays where it is.
  template <typename Allocate, typename Copy>
  void move(const Allocate& allocate, const Copy& copy) {
    std::vector<Buffer> made;
    for (const std::vector<TensorView>& tensors : chunks_) {
      for (const TensorView& view : tensors) made.push_back(allocate(view.nbytes()));
    }
    auto next = made.begin();
    for (std::vector<TensorView>& tensors : chunks_) {
      for (TensorView& view : tensors) {
        copy(view, next->data());
        view.data = (next++)->data();
      }
    }
    device_.inline_stream().synchronize();
    buffers_ = std::move(made);
    offloaded_ = !offloaded_;
  }

  Device& device_;
  std::vector<Buffer> buffers_;  // of all tensors, one after the other
  bool offloaded_ = false;       // in host memory
};

template <typename Allocate>
std::vector<std::vector<TensorView>> views_of(std::span<const StateLayout> chunks,
                                              const Allocate& allocate) {
  std::vector<std::vector<TensorView>> views;
  for (const StateLayout& chunk : chunks) {
    std::vector<TensorView>& tensors = views.emplace_back();
    for (const StateSpec& spec : chunk.tensors) {
      tensors.push_back(allocate(spec, spec.numel(chunk.numel)));
    }
  }
  return views;
}

}  // namespace

std::unique_ptr<StateStore> make_device_state_store(Device& device,
                                                    std::span<const StateLayout> chunks) {
  std::vector<Buffer> buffers;
  auto views = views_of(chunks, [&](const StateSpec& spec, int64_t numel) {
    TensorView view{nullptr, numel, spec.dtype};
    buffers.push_back(device.allocate(view.nbytes(), MemoryCategory::optimizer));
    view.data = buffers.back().data();
    // The values that masters get are in memory until then: on a host, masters are not yet.
    const bool comes_later =
        spec.name == "master" && device.is_host() && view.nbytes() >= kMappedBlock;
    if (!comes_later) device.fill(device.inline_stream(), view, 0.0F);
    return view;
  });
  return std::make_unique<DeviceStateStore>(device, std::move(views), std::move(buffers));
}

std::unique_ptr<StateStore> make_host_state_store(PinnedArena& arena,
                                                  std::span<const StateLayout> chunks) {
  auto views = views_of(
      chunks, [&](const StateSpec& spec, int64_t numel) { return arena.take(numel, spec.dtype); });
  return std::make_unique<ResidentStateStore>(std::move(views));
}

size_t host_state_nbytes(const StateLayout& chunk) {
  size_t nbytes = 0;
  for (const StateSpec& spec : chunk.tensors) {
    nbytes += PinnedArena::nbytes_of(spec.numel(chunk.numel), spec.dtype);
  }
  return nbytes;
}

}  // namespace zerorun
