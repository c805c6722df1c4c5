#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "comm/transport.h"

namespace zerorun {

// The base class of transports between memory of the host. Each call is one task of a CpuStream.
// Calls run in the order in which they were started, even if they are on several streams.
class HostTransport : public Transport, public std::enable_shared_from_this<HostTransport> {
 public:
  Event start(std::span<CollectiveCall> calls, Stream& stream) final;
  std::optional<Buffer> allocate(size_t nbytes, Sharing sharing) final;
  std::shared_ptr<Transport> make_group(GroupOptions& options) final;

 private:
  class Turn;

  // Performs the call on this thread.
  virtual void run(const CollectiveCall& call) = 0;
  virtual std::optional<Buffer> make_buffer(size_t nbytes, Sharing sharing) = 0;
  // False if the call need not wait for those before it. Throws InternalError if the call is not
  // possible.
  virtual bool takes_turn(const CollectiveCall& /*call*/) const { return true; }

  // The order of calls.
  struct Order {
    std::mutex mutex;
    std::condition_variable changed;
    // Guarded by the mutex: turns that were taken, and that have ended.
    uint64_t taken = 0;
    uint64_t ended = 0;
    bool stopped = false;  // a turn was dropped, so the others need not wait
  };
  Order order_;
};

// Makes the transport that fits the places of the ranks: a copy for one rank, shared memory for
// ranks of one host, and shared memory with links over Gloo for ranks of several hosts. Drops
// options.store if the ranks need none any more.
std::shared_ptr<Transport> make_host_transport(GroupOptions& options);

}  // namespace zerorun
