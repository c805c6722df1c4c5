#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/build_id.h"
#include "zerorun/communicator.h"

namespace zerorun {

// A message that was started by Links::send or receive. Its memory must outlive it.
class Transfer {
 public:
  virtual ~Transfer() = default;
  // Returns when the memory may be used again. Throws CommError if the connection broke, and after
  // Links::cancel.
  virtual void wait() = 0;
};

// The point-to-point connections of one rank to ranks of other hosts. One thread uses them; any
// thread may cancel.
class Links {
 public:
  virtual ~Links() = default;
  // Messages in flight between the same two ranks, in one direction, have different tags. The
  // receiver has to ask for exactly as many bytes as are sent.
  virtual std::unique_ptr<Transfer> send(int peer, uint64_t tag,
                                         std::span<const std::byte> bytes) = 0;
  virtual std::unique_ptr<Transfer> receive(int peer, uint64_t tag, std::span<std::byte> bytes) = 0;
  // Makes all current and later waits throw CommError.
  virtual void cancel() noexcept = 0;
};

struct LinkOptions {
  int rank = 0;
  int world_size = 1;
  std::vector<int> peers;                        // ascending; each has this rank as a peer
  std::function<std::string(int)> name_of_rank;  // for errors
  std::shared_ptr<Store> store;
  std::string prefix;   // of the store's keys
  std::string address;  // of this host, a numeric IP address
  // Waits for a value that `peer` writes to the store.
  std::function<std::string(int peer, const std::string& key)> get;
  // Runs `connect`, which waits for `peer`. `cancel` ends that wait; another thread may call it.
  std::function<void(int peer, const std::function<void()>& connect,
                     const std::function<void()>& cancel)>
      run;
};

// The entry point of libzerorun_gloo.so, a plugin (device/plugin.h) with Links over Gloo. It is a
// library of its own because its copy of Gloo exports the same symbols as PyTorch's copy.
struct GlooBackend {
  BuildId build;
  // Connects this rank to options.peers over TCP. Collective over the ranks that are peers of each
  // other. Throws CommError if a peer cannot be reached.
  std::unique_ptr<Links> (*connect)(const LinkOptions& options);
  // For `zerorun env`: Gloo's version.
  std::string (*describe)();
};
inline constexpr const char* kGlooBackendEntry = "zerorun_gloo_backend";
inline constexpr const char* kGlooLibrary = "libzerorun_gloo.so";

}  // namespace zerorun
