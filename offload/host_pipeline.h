#pragma once

#include <cstdint>
#include <memory>

#include "device/slot_ring.h"
#include "offload/pinned_arena.h"
#include "zerorun/device.h"
#include "zerorun/tensor.h"

namespace zerorun {

// Work on offloaded memory, beside the device's: device-to-host copies, kernels of the host's cores
// and host-to-device copies run on a stream each, so that a step takes as long as the longest.
class HostPipeline {
 public:
  // Staging for copies in one direction: `slots` views of `slot_nbytes` each.
  struct Staging {
    int slots = 0;
    size_t slot_nbytes = 0;
    size_t nbytes() const { return static_cast<size_t>(slots) * slot_nbytes; }
  };
  HostPipeline(Device& device, PinnedArena& arena, Staging to_host, Staging to_device);

  // The device of the host's cores, and its stream for offloaded states.
  Device& host() const { return device_.host(); }
  Stream& stream() { return *compute_; }

  // Copies to host memory that outlives the copy, after what `after` has done.
  Event fetch(TensorView src, TensorView dst, const Event& after);
  // The same to staging; stream() waits for it. Read it before the `slots`th next call.
  TensorView fetch(TensorView src, const Event& after);
  // stream() is done with what the last fetch to staging returned.
  void fetched();

  // Staging for stream() to write to, and the copy of it to the device. One at a time.
  TensorView outgoing(int64_t numel, DType dtype);
  Event send(TensorView staged, TensorView dst);

  // Everything fetched, or sent, so far.
  Event received() { return to_host_->record(); }
  Event sent() { return to_device_->record(); }
  // Waits for all three streams; rethrows their first error.
  void synchronize();
  // The same before memory goes that their work uses, whatever has become of it.
  void drain() noexcept;

 private:
  Device& device_;
  SlotRing incoming_;
  SlotRing outgoing_;
  // Last, so that their work is done before what it uses goes.
  std::unique_ptr<Stream> to_host_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Stream> to_device_;
};

}  // namespace zerorun
