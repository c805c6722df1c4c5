#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zerorun/communicator.h"

namespace zerorun {

// A message that is on its way. Its memory must outlive it.
class Transfer {
 public:
  virtual ~Transfer() = default;
  // Returns when the memory may be used again. Throws CommError when the connection broke, and
  // after Links::cancel.
  virtual void wait() = 0;
};

// The connections of one rank with ranks of other hosts. One thread uses them, any may cancel.
class Links {
 public:
  virtual ~Links() = default;
  // Messages that are on their way from one rank to another have different tags. The receiver asks
  // for as many bytes as are sent.
  virtual std::unique_ptr<Transfer> send(int peer, uint64_t tag,
                                         std::span<const std::byte> bytes) = 0;
  virtual std::unique_ptr<Transfer> receive(int peer, uint64_t tag, std::span<std::byte> bytes) = 0;
  // Current and later waits end by a CommError.
  virtual void cancel() noexcept = 0;
};

struct LinkOptions {
  int rank = 0;
  int world_size = 1;
  std::vector<int> peers;                        // ascending; each names this rank as well
  std::function<std::string(int)> name_of_rank;  // for errors
  std::shared_ptr<Store> store;
  std::string prefix;   // of the store's keys
  std::string address;  // of this host, as numbers
  // Waits for what `peer` leaves in the store.
  std::function<std::string(int peer, const std::string& key)> get;
  // Runs `connect`, which waits for `peer`; `cancel` ends it, from another thread.
  std::function<void(int peer, const std::function<void()>& connect,
                     const std::function<void()>& cancel)>
      run;
};

}  // namespace zerorun
