#pragma once

#include <span>
#include <string_view>

#include "zerorun/communicator.h"
#include "zerorun/device.h"

namespace zerorun::train {

// Sums a few numbers over all ranks asynchronously, so that the caller can submit more work to the
// device meanwhile. For each sum: put(), start() and finish().
class RankSums {
 public:
  static constexpr int kMaxValues = 4;

  RankSums(Device& device, Communicator& comm)
      : device_(device),
        comm_(comm),
        on_host_(device.allocate_pinned(kMaxValues * sizeof(float))),
        on_device_(device.allocate(kMaxValues * sizeof(float), MemoryCategory::other)) {}

  // Sets the values to add, at most kMaxValues. The inline stream may replace some of them in the
  // result, which is on the device, before start().
  TensorView put(std::span<const float> values);
  // Starts summing. Collective.
  void start(std::string_view label);
  // Waits for the sums.
  void finish(std::span<float> sums);

 private:
  Device& device_;
  Communicator& comm_;
  const Buffer on_host_;
  const Buffer on_device_;
  TensorView values_;
  Event there_;
};

}  // namespace zerorun::train
