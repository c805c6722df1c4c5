#pragma once

#include <cstdint>
#include <vector>

#include "offload/host_lane.h"
#include "zero/bucket.h"

namespace zerorun {

// For each parameter the L2 norms of itself and of its direction: exact sums of squares, with one
// collective for all.
class LambNorms {
 public:
  // `lane` is null when nothing is offloaded.
  LambNorms(const EngineContext& context, HostLane* lane);
  LambNorms(const LambNorms&) = delete;
  LambNorms& operator=(const LambNorms&) = delete;
  ~LambNorms() {
    if (lane_ != nullptr) lane_->settle();
  }

  // Adds a part of a parameter and of its direction, which lie where `device` computes.
  void add(Device& device, Stream& stream, ParameterId id, TensorView parameter,
           TensorView direction);
  // Collective, after everything was added.
  void finish(Stream& comm_stream);

  double parameter(ParameterId id) const { return norm(id, 0); }
  double direction(ParameterId id) const { return norm(id, 1); }

 private:
  double norm(ParameterId id, int64_t which) const;

  const EngineContext& context_;
  HostLane* const lane_;
  int64_t words_ = 0;  // of all sums that one side adds
  Buffer buffer_;
  TensorView sums_;            // of the device; behind them, room for those of the host
  std::vector<int64_t> host_;  // of the host; then the result
};

}  // namespace zerorun
