#pragma once

#include <utility>

#include "comm/call_communicator.h"
#include "device/cpu/cpu_stream.h"

namespace zerorun {

// A communicator of host memory: its calls are tasks of CpuStreams.
class HostCommunicator : public CallCommunicator {
 protected:
  using CallCommunicator::CallCommunicator;

 private:
  void submit(CollectiveCall call, Stream& stream) final {
    submit(std::move(call), cpu_stream(stream));
  }
  // Submits one task to the stream.
  virtual void submit(CollectiveCall call, CpuStream& stream) = 0;
};

}  // namespace zerorun
