#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "os/file_descriptor.h"
#include "zerorun/error.h"

// TCP sockets: every wait has a deadline, every length read from a peer is bounded.
namespace zerorun {

using Deadline = std::chrono::steady_clock::time_point;

// A port of this host. Its socket is non-blocking.
struct Listener {
  FileDescriptor socket;
  uint16_t port = 0;
};
// Takes the port of `host`, an address of this machine, without listening yet; port 0: any free
// one. Until the socket is closed nobody is given the port as a free one, but a program that asks
// for this port may still listen on it: PyTorch does, in a rank that has no use for the socket.
// Throws CommError when somebody listens there, or the address is not of this host.
Listener reserve_port(const std::string& host, uint16_t port);
// Listens on a reserved port. Throws CommError when somebody else does.
void listen_on(const Listener& listener);
// Takes over the reserved port that a parent process left open as `descriptor`; nothing when the
// descriptor is not a socket of that port on which nobody listens.
std::optional<Listener> inherit_listener(int descriptor, uint16_t port);

// True when only this host reaches the port.
bool is_bound_to_loopback(const Listener& listener);

// The other side has closed the connection, or it broke.
class Dropped : public CommError {
 public:
  using CommError::CommError;
};

// The meaning of a port on which nobody listens.
enum class Absence { not_yet, gone };
// Connects, and tries again until the deadline while nobody listens yet. Throws CommError at the
// deadline, and Dropped at once when nobody listens any more.
FileDescriptor connect_to(const std::string& host, uint16_t port, Deadline deadline,
                          Absence absence = Absence::not_yet);

// A frame is a length (4 bytes, little endian) and that many bytes.
std::string frame_of(const std::string& payload);
// Takes the first frame out of `bytes` if it is complete. Throws CommError when its length exceeds
// `limit`.
std::optional<std::string> take_frame(std::string& bytes, size_t limit);

// Both throw CommError at the deadline and Dropped when the peer is gone.
void send_frame(const FileDescriptor& socket, const std::string& payload, Deadline deadline);
std::string receive_frame(const FileDescriptor& socket, size_t limit, Deadline deadline);

}  // namespace zerorun
