#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "comm/collective_call.h"
#include "comm/group_options.h"
#include "zerorun/communicator.h"
#include "zerorun/device.h"

namespace zerorun {

// What does not change while a transport exists.
struct TransportTraits {
  std::string name;  // see Communicator::transport
  int local_world_size = 1;
  bool reads_peers = false;  // see Communicator::reads_peers
  // Several calls can be one operation, and calls of another transport of the same ranks run beside
  // those of this one, with no cost to the caller.
  bool overlaps = false;
};

// How the ranks of a communicator exchange data. GroupCommunicator, its only user, checks, names
// and counts the calls before.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual TransportTraits traits() const = 0;

  // Enqueues calls on a stream, as one operation if `overlaps`. The event completes with them.
  virtual Event start(std::span<CollectiveCall> calls, Stream& stream) = 0;
  // See Communicator::allocate.
  virtual std::optional<Buffer> allocate(size_t nbytes, Sharing sharing) = 0;
  // Makes the transport of a group of the ranks. Drops options.store if it needs none any more.
  virtual std::shared_ptr<Transport> make_group(GroupOptions& options) = 0;
  // See bound_link in comm/group_communicator.h.
  virtual void bound_link(DType /*dtype*/) {}

  // Errors. Any thread may call these.
  //
  // Throws CommError if there is an error, or if a peer has left or died while this rank waited for
  // it in `what`. Called often by a rank that waits outside of collectives.
  virtual void check_peers(std::string_view /*what*/) {}
  // See Communicator::abort.
  virtual void abort(std::string_view reason) noexcept = 0;
  // See JobState::Member. A transport without peers needs neither.
  virtual void set_error(std::string_view /*error*/) noexcept {}
  virtual std::string error() { return {}; }
  // This rank makes no more calls. Work that is still under way fails, here and at its peers.
  virtual void leave() noexcept {}
};

}  // namespace zerorun
