#include "offload/host_pipeline.h"

#include <utility>

#include "core/check.h"
#include "device/drain.h"

namespace zerorun {

HostPipeline::HostPipeline(Device& device, PinnedArena& arena, Staging down, Staging up)
    : device_(device),
      incoming_(make_ring(arena, down)),
      outgoing_(make_ring(arena, up)),
      down_(device.make_stream("zerorun-down")),
      compute_(device.host().make_stream("zerorun-host")),
      up_(device.make_stream("zerorun-up")) {}

HostPipeline::Ring HostPipeline::make_ring(PinnedArena& arena, Staging staging) {
  Ring ring;
  for (int i = 0; i < staging.slots; ++i) {
    ring.slots.push_back(arena.take(static_cast<int64_t>(staging.slot_nbytes), DType::uint8));
  }
  ring.free.resize(ring.slots.size());
  return ring;
}

TensorView HostPipeline::Ring::view(int64_t numel, DType dtype) const {
  const TensorView view{slots.at(next).data, numel, dtype};
  ZR_CHECK(view.nbytes() <= slots[next].nbytes(), "{} bytes are staged in slots of {}",
           view.nbytes(), slots[next].nbytes());
  return view;
}

void HostPipeline::Ring::advance(Event free_after) {
  free[next] = std::move(free_after);
  next = (next + 1) % slots.size();
}

Event HostPipeline::fetch(TensorView src, TensorView dst, const Event& after) {
  down_->wait(after);
  device_.download(*down_, src, dst.data);
  return down_->record();
}

TensorView HostPipeline::fetch(TensorView src, const Event& after) {
  const TensorView staged = incoming_.view(src.numel, src.dtype);
  down_->wait(incoming_.free[incoming_.next]);
  compute_->wait(fetch(src, staged, after));
  return staged;
}

void HostPipeline::fetched() { incoming_.advance(compute_->record()); }

TensorView HostPipeline::outgoing(int64_t numel, DType dtype) {
  const TensorView staged = outgoing_.view(numel, dtype);
  compute_->wait(outgoing_.free[outgoing_.next]);
  return staged;
}

Event HostPipeline::send(TensorView staged, TensorView dst) {
  up_->wait(compute_->record());
  device_.upload(*up_, staged.data, dst);
  outgoing_.advance(up_->record());
  return up_->record();
}

void HostPipeline::drain() noexcept {
  for (Stream* stream : {down_.get(), compute_.get(), up_.get()}) zerorun::drain(*stream);
}

void HostPipeline::synchronize() {
  down_->synchronize();
  compute_->synchronize();
  up_->synchronize();
}

}  // namespace zerorun
