#pragma once

#include <memory>
#include <utility>

#include "comm/call_communicator.h"
#include "device/cpu/cpu_stream.h"

namespace zerorun {

// Makes a communicator for host memory. The transport depends on where the ranks are: a copy for
// one rank, shared memory for ranks of one host, and shared memory with Gloo links for ranks of
// several hosts.
std::shared_ptr<CallCommunicator> make_host_communicator(const GroupOptions& options);

// The base class of communicators for host memory. Each call is one task of a CpuStream.
class HostCommunicator : public CallCommunicator {
 protected:
  using CallCommunicator::CallCommunicator;

 private:
  void submit(CollectiveCall call, Stream& stream) final {
    submit(std::move(call), cpu_stream(stream));
  }
  std::shared_ptr<Communicator> make_group(const GroupOptions& options) final {
    return make_host_communicator(options);
  }
  // Submits one task to the stream.
  virtual void submit(CollectiveCall call, CpuStream& stream) = 0;
};

}  // namespace zerorun
