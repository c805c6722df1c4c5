#include "offload/host_pipeline.h"

#include "device/drain.h"

namespace zerorun {

namespace {

SlotRing make_ring(PinnedArena& arena, HostPipeline::Staging staging) {
  SlotRing ring;
  for (int i = 0; i < staging.slots; ++i) {
    ring.add(arena.take(static_cast<int64_t>(staging.slot_nbytes), DType::uint8));
  }
  return ring;
}

}  // namespace

HostPipeline::HostPipeline(Device& device, PinnedArena& arena, Staging down, Staging up)
    : device_(device),
      incoming_(make_ring(arena, down)),
      outgoing_(make_ring(arena, up)),
      down_(device.make_stream("zerorun-down")),
      compute_(device.host().make_stream("zerorun-host")),
      up_(device.make_stream("zerorun-up")) {}

Event HostPipeline::fetch(TensorView src, TensorView dst, const Event& after) {
  down_->wait(after);
  device_.download(*down_, src, dst.data);
  return down_->record();
}

TensorView HostPipeline::fetch(TensorView src, const Event& after) {
  const TensorView staged = incoming_.view(incoming_.take(*down_), src.numel, src.dtype);
  compute_->wait(fetch(src, staged, after));
  return staged;
}

void HostPipeline::fetched() { incoming_.release(incoming_.last(), compute_->record()); }

TensorView HostPipeline::outgoing(int64_t numel, DType dtype) {
  return outgoing_.view(outgoing_.take(*compute_), numel, dtype);
}

Event HostPipeline::send(TensorView staged, TensorView dst) {
  up_->wait(compute_->record());
  device_.upload(*up_, staged.data, dst);
  Event sent = up_->record();
  outgoing_.release(outgoing_.last(), sent);
  return sent;
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
