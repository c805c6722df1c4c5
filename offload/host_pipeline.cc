#include "offload/host_pipeline.h"

#include "device/cpu/cpu_stream.h"
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

HostPipeline::HostPipeline(Device& device, PinnedArena& arena, Staging to_host, Staging to_device)
    : device_(device),
      incoming_(make_ring(arena, to_host)),
      outgoing_(make_ring(arena, to_device)),
      to_host_(device.make_stream("zerorun-to-host")),
      compute_(device.host().make_stream("zerorun-host")),
      to_device_(device.make_stream("zerorun-to-device")) {
  for (Stream* stream : {to_host_.get(), compute_.get(), to_device_.get()}) {
    serve_offloading(*stream);
  }
}

Event HostPipeline::fetch(TensorView src, TensorView dst, const Event& after) {
  to_host_->wait(after);
  device_.download(*to_host_, src, dst.data);
  return to_host_->record();
}

TensorView HostPipeline::fetch(TensorView src, const Event& after) {
  const TensorView staged = incoming_.view(incoming_.take(*to_host_), src.numel, src.dtype);
  compute_->wait(fetch(src, staged, after));
  return staged;
}

void HostPipeline::fetched() { incoming_.release(incoming_.last(), compute_->record()); }

void HostPipeline::hold_fetches() { to_host_->wait(compute_->record()); }

TensorView HostPipeline::outgoing(int64_t numel, DType dtype) {
  return outgoing_.view(outgoing_.take(*compute_), numel, dtype);
}

Event HostPipeline::send(TensorView staged, TensorView dst, const Event& after) {
  to_device_->wait(after);
  to_device_->wait(compute_->record());
  device_.upload(*to_device_, staged.data, dst);
  Event sent = to_device_->record();
  outgoing_.release(outgoing_.last(), sent);
  return sent;
}

void HostPipeline::drain() noexcept {
  for (Stream* stream : {to_host_.get(), compute_.get(), to_device_.get()}) zerorun::drain(*stream);
}

void HostPipeline::synchronize() {
  to_host_->synchronize();
  compute_->synchronize();
  to_device_->synchronize();
}

}  // namespace zerorun
