#include <utility>

#include "core/check.h"
#include "offload/host_slab.h"
#include "offload/state_store.h"

namespace zerorun {

namespace {

// States that rest where they are used.
class ResidentStateStore final : public StateStore {
 public:
  ResidentStateStore(std::vector<std::vector<TensorView>> pieces, std::vector<Buffer> buffers)
      : buffers_(std::move(buffers)), pieces_(std::move(pieces)) {}

  using StateStore::acquire;
  using StateStore::release;
  std::vector<TensorView> acquire(int piece, Stream& /*stream*/, Content /*content*/) override {
    return rest(piece);
  }
  void release(int /*piece*/, Stream& /*stream*/, size_t /*changed*/) override {}
  std::vector<TensorView> rest(int piece) override {
    return pieces_.at(static_cast<size_t>(piece));
  }

 private:
  std::vector<Buffer> buffers_;
  std::vector<std::vector<TensorView>> pieces_;
};

template <typename Allocate>
std::vector<std::vector<TensorView>> views_of(std::span<const StateLayout> pieces,
                                              const Allocate& allocate) {
  std::vector<std::vector<TensorView>> views;
  for (const StateLayout& piece : pieces) {
    std::vector<TensorView>& tensors = views.emplace_back();
    for (const StateSpec& spec : piece.tensors) {
      tensors.push_back(allocate(spec.numel(piece.numel), spec.dtype));
    }
  }
  return views;
}

}  // namespace

std::unique_ptr<StateStore> make_device_state_store(Device& device,
                                                    std::span<const StateLayout> pieces) {
  std::vector<Buffer> buffers;
  auto views = views_of(pieces, [&](int64_t numel, DType dtype) {
    TensorView view{nullptr, numel, dtype};
    buffers.push_back(device.allocate(view.nbytes(), MemoryCategory::optimizer));
    view.data = buffers.back().data();
    device.fill(device.inline_stream(), view, 0.0F);
    return view;
  });
  return std::make_unique<ResidentStateStore>(std::move(views), std::move(buffers));
}

std::unique_ptr<StateStore> make_host_state_store(HostSlab& slab,
                                                  std::span<const StateLayout> pieces) {
  auto views =
      views_of(pieces, [&](int64_t numel, DType dtype) { return slab.take(numel, dtype); });
  return std::make_unique<ResidentStateStore>(std::move(views), std::vector<Buffer>{});
}

size_t host_state_nbytes(const StateLayout& piece) {
  size_t nbytes = 0;
  for (const StateSpec& spec : piece.tensors) {
    nbytes += HostSlab::nbytes_of(spec.numel(piece.numel), spec.dtype);
  }
  return nbytes;
}

}  // namespace zerorun
