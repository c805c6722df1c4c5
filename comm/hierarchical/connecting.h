#pragma once

#include <functional>
#include <optional>
#include <string>

#include "comm/group_options.h"
#include "comm/hierarchical/topology.h"

namespace zerorun::hierarchical {

// The set-up of a rank's connections with other hosts, which only ends when the peers take part.
// Whoever waits says so after 10 s, and stops when a peer has failed: that one says why in the
// store.
class Connecting {
 public:
  // The arguments must outlive this.
  Connecting(const GroupOptions& options, const Topology& topology)
      : options_(options), topology_(topology) {}

  // The value that `peer` leaves at a key of the store. Throws CommError.
  std::string get(int peer, const std::string& key) const;
  // Runs `connect`, which waits for `peer`; `cancel`, which another thread calls, ends it. Throws
  // CommError.
  void run(int peer, const std::function<void()>& connect,
           const std::function<void()>& cancel) const;

 private:
  std::string waiting_for(int peer) const;
  // Calls `cancel` and returns why when `connect` is to end; else returns when `ended` is true,
  // which waits a moment.
  std::string watch(int peer, const std::function<bool()>& ended,
                    const std::function<void()>& cancel) const;

  const GroupOptions& options_;
  const Topology& topology_;
};

// Where a communicator's first error is kept for all of its ranks.
std::string error_key(const GroupOptions& options);
// What is there; nothing, too, when the store cannot be asked. Throws CommError when it is gone.
std::optional<std::string> find_error(const GroupOptions& options);
// Tells the peers why this rank cannot take part. Rank 0's store goes with it, so rank 0 gives them
// a moment to hear.
void tell_peers(const GroupOptions& options, const std::string& error) noexcept;

}  // namespace zerorun::hierarchical
