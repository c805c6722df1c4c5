#pragma once

#include <string_view>

#include "tests/zero/virtual_clock.h"
#include "tests/zero/wrapped_communicator.h"

namespace zerorun::testing {

// Gathers that take a time on their stream.
class TimedGathers final : public WrappedCommunicator {
 public:
  TimedGathers(Communicator& inner, double seconds)
      : WrappedCommunicator(inner), seconds_(seconds) {}
  Event all_gather(TensorView in, TensorView out, Sync sync, Stream& stream,
                   std::string_view label) override {
    WrappedCommunicator::all_gather(in, out, sync, stream, label);
    dynamic_cast<VirtualStream&>(stream).pass(seconds_);
    return stream.record();
  }

 private:
  const double seconds_;
};

}  // namespace zerorun::testing
