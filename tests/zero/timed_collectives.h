#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "tests/zero/virtual_clock.h"
#include "tests/zero/wrapped_communicator.h"

namespace zerorun::testing {

struct CollectiveSeconds {
  double gather = 0.0;
  double reduce_scatter = 0.0;
};

// Collectives that take a time on their stream. As with NCCL no rank reads its peers' memory, and
// the calls of a communicator happen one after the other, whatever their streams.
class TimedCollectives final : public WrappedCommunicator {
 public:
  TimedCollectives(Communicator& inner, CollectiveSeconds seconds)
      : WrappedCommunicator(inner), seconds_(seconds) {}
  TimedCollectives(std::shared_ptr<Communicator> inner, CollectiveSeconds seconds)
      : WrappedCommunicator(*inner), seconds_(seconds), owned_(std::move(inner)) {}

  Event all_gather(TensorView in, TensorView out, Sync /*sync*/, Stream& stream,
                   std::string_view label) override {
    stream.wait(last_);
    WrappedCommunicator::all_gather(in, out, Sync::collective, stream, label);
    return pass(stream, seconds_.gather);
  }
  Event reduce_scatter(TensorView in, TensorView out, Output output, Stream& stream,
                       std::string_view label) override {
    stream.wait(last_);
    WrappedCommunicator::reduce_scatter(in, out, output, stream, label);
    return pass(stream, seconds_.reduce_scatter);
  }
  Communicator& second_lane(std::string_view name) override {
    if (!lane_) lane_ = std::make_unique<TimedCollectives>(split(0, rank(), name), seconds_);
    return *lane_;
  }
  bool reads_peers() const override { return false; }

 private:
  Event pass(Stream& stream, double seconds) {
    dynamic_cast<VirtualStream&>(stream).pass(seconds);
    return last_ = stream.record();
  }

  const CollectiveSeconds seconds_;
  const std::shared_ptr<Communicator> owned_;
  std::unique_ptr<TimedCollectives> lane_;
  Event last_;
};

}  // namespace zerorun::testing
