#include <utility>

#include "core/check.h"
#include "offload/pinned_arena.h"
#include "offload/state_store.h"

namespace zerorun {

namespace {

// States that are stored where they are used.
class ResidentStateStore final : public StateStore {
 public:
  ResidentStateStore(std::vector<std::vector<TensorView>> chunks, std::vector<Buffer> buffers)
      : buffers_(std::move(buffers)), chunks_(std::move(chunks)) {}

  using StateStore::acquire;
  using StateStore::release;
  std::vector<TensorView> acquire(int chunk, Stream& /*stream*/, Content /*content*/) override {
    return stored(chunk);
  }
  void release(int /*chunk*/, Stream& /*stream*/, size_t /*changed*/) override {}
  std::vector<TensorView> stored(int chunk) override {
    return chunks_.at(static_cast<size_t>(chunk));
  }

 private:
  std::vector<Buffer> buffers_;
  std::vector<std::vector<TensorView>> chunks_;
};

template <typename Allocate>
std::vector<std::vector<TensorView>> views_of(std::span<const StateLayout> chunks,
                                              const Allocate& allocate) {
  std::vector<std::vector<TensorView>> views;
  for (const StateLayout& chunk : chunks) {
    std::vector<TensorView>& tensors = views.emplace_back();
    for (const StateSpec& spec : chunk.tensors) {
      tensors.push_back(allocate(spec.numel(chunk.numel), spec.dtype));
    }
  }
  return views;
}

}  // namespace

std::unique_ptr<StateStore> make_device_state_store(Device& device,
                                                    std::span<const StateLayout> chunks) {
  std::vector<Buffer> buffers;
  auto views = views_of(chunks, [&](int64_t numel, DType dtype) {
    TensorView view{nullptr, numel, dtype};
    buffers.push_back(device.allocate(view.nbytes(), MemoryCategory::optimizer));
    view.data = buffers.back().data();
    device.fill(device.inline_stream(), view, 0.0F);
    return view;
  });
  return std::make_unique<ResidentStateStore>(std::move(views), std::move(buffers));
}

std::unique_ptr<StateStore> make_host_state_store(PinnedArena& arena,
                                                  std::span<const StateLayout> chunks) {
  auto views =
      views_of(chunks, [&](int64_t numel, DType dtype) { return arena.take(numel, dtype); });
  return std::make_unique<ResidentStateStore>(std::move(views), std::vector<Buffer>{});
}

size_t host_state_nbytes(const StateLayout& chunk) {
  size_t nbytes = 0;
  for (const StateSpec& spec : chunk.tensors) {
    nbytes += PinnedArena::nbytes_of(spec.numel(chunk.numel), spec.dtype);
  }
  return nbytes;
}

}  // namespace zerorun
