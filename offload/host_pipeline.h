#pragma once

#include <cstdint>
#include <memory>

#include "device/slot_ring.h"
#include "offload/pinned_arena.h"
#include "zerorun/device.h"
#include "zerorun/tensor.h"

namespace zerorun {

// Processes offloaded states while the device works. Device-to-host copies, kernels on the host's
// cores and host-to-device copies have a stream each and overlap, so a step takes as long as the
// slowest of the three.
class HostPipeline {
 public:
  // The staging buffers of one direction: `slots` buffers of `slot_nbytes` bytes each.
  struct Staging {
    int slots = 0;
    size_t slot_nbytes = 0;
    size_t nbytes() const { return static_cast<size_t>(slots) * slot_nbytes; }
  };
  HostPipeline(Device& device, PinnedArena& arena, Staging to_host, Staging to_device);

  // The device of the host's cores, and its stream that computes on offloaded states.
  Device& host() const { return device_.host(); }
  Stream& stream() { return *compute_; }

  // Copies `src` on the device to `dst` in host memory, after `after`. `dst` has to outlive the
  // copy.
  Event fetch(TensorView src, TensorView dst, const Event& after);
  // Copies `src` to a staging buffer; stream() waits for the copy. The result is valid until the
  // `slots`th next call.
  TensorView fetch(TensorView src, const Event& after);
  // Called when stream() has been given all work that reads the last staging buffer.
  void fetched();
  // Makes later copies to the host wait for the work that stream() was given so far, because they
  // overwrite what it reads.
  void hold_fetches();

  // outgoing() returns a staging buffer for stream() to write; send() copies it to the device,
  // after `after`. One buffer at a time.
  TensorView outgoing(int64_t numel, DType dtype);
  Event send(TensorView staged, TensorView dst, const Event& after = {});

  // Events after which everything fetched, or sent, so far is complete.
  Event received() { return to_host_->record(); }
  Event sent() { return to_device_->record(); }
  // Waits for all three streams and rethrows their first error.
  void synchronize();
  // Waits for all three streams before memory that they use is freed; ignores errors.
  void drain() noexcept;

 private:
  Device& device_;
  SlotRing incoming_;
  SlotRing outgoing_;
  // Declared last, so that their work has completed before the memory it uses is freed.
  std::unique_ptr<Stream> to_host_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Stream> to_device_;
};

}  // namespace zerorun
