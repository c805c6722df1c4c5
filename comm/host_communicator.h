#pragma once

#include <utility>

#include "comm/call_communicator.h"
#include "device/cpu/cpu_stream.h"

namespace zerorun {

// The base of communicators for host memory: each call is one task of a CpuStream.
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
