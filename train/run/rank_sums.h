#pragma once

#include <span>
#include <string_view>

#include "zerorun/communicator.h"
#include "zerorun/device.h"

namespace zerorun::train {

// Adds a few numbers over the ranks, while the caller may give the device more work.
class RankSums {
 public:
  static constexpr int kMaxValues = 4;

  RankSums(Device& device, Communicator& comm)
      : device_(device),
        comm_(comm),
        on_host_(device.allocate_pinned(kMaxValues * sizeof(float))),
        on_device_(device.allocate(kMaxValues * sizeof(float), MemoryCategory::other)) {}

  // Collective. Of at most kMaxValues values.
  void start(std::span<const float> values, std::string_view label);
  // Waits for the sums of what was started.
  void finish(std::span<float> sums);

 private:
  Device& device_;
  Communicator& comm_;
  const Buffer on_host_;
  const Buffer on_device_;
  Event there_;
};

}  // namespace zerorun::train
