#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "os/file_descriptor.h"
#include "zerorun/error.h"

// TCP sockets. Every wait has a deadline, and every length that is read from a peer is limited.
namespace zerorun {

using Deadline = std::chrono::steady_clock::time_point;

// A TCP port of this host with its non-blocking socket.
struct Listener {
  FileDescriptor socket;
  uint16_t port = 0;
};
// Binds a socket to the port of `host`, an address of this machine, without listening yet; port 0
// means any free port. Until the socket is closed, the system does not assign the port to others as
// a free one, but a program that asks for this port explicitly may still listen on it, as PyTorch
// does in a rank that does not need the socket. Throws CommError if another process listens on the
// port or the address is not of this host.
Listener reserve_port(const std::string& host, uint16_t port);
// Listens on a reserved port. Throws CommError if another process does.
void listen_on(const Listener& listener);
// Accepts a connection, without waiting for one: the result may be empty. If the process is out of
// descriptors, waits a moment for a free one, because poll() goes on to report the listener.
FileDescriptor accept_from(const Listener& listener);
// Takes over a reserved port from the parent process, whose socket is `descriptor`. Returns nullopt
// unless the descriptor is a socket bound to that port on which no process listens.
std::optional<Listener> inherit_listener(int descriptor, uint16_t port);

// True if only processes of this host can reach the port.
bool is_bound_to_loopback(const Listener& listener);

// The connection was closed by the peer or is broken.
class Dropped : public CommError {
 public:
  using CommError::CommError;
};

// One attempt to connect to a host that has one or several addresses.
struct ConnectionAttempt {
  struct Failure {
    std::string address;
    int error;  // of errno
  };
  FileDescriptor socket{};  // empty if no address answered
  std::vector<Failure> failures{};
};
// Tries each address of `host` once, each for at most `time`. Throws CommError if it has none.
ConnectionAttempt attempt_to_connect(const std::string& host, uint16_t port,
                                     std::chrono::milliseconds time);

// What it means if no process listens on a port: it has not started yet, or it has ended.
enum class Absence { not_yet, gone };
// Connects to a port. If no process listens there: with Absence::not_yet tries again until the
// deadline, then throws CommError; with Absence::gone throws Dropped immediately. An address of
// several that drops packets does not keep the others from being tried.
FileDescriptor connect_to(const std::string& host, uint16_t port, Deadline deadline,
                          Absence absence = Absence::not_yet);

// Returns `payload` as a frame: its length (4 bytes, little-endian), then its bytes.
std::string frame_of(const std::string& payload);
// Removes the first frame from `bytes` and returns its payload if it is complete. Throws CommError
// if its length exceeds `limit`.
std::optional<std::string> take_frame(std::string& bytes, size_t limit);

// Send or receive a frame. Both throw CommError at the deadline and Dropped if the peer is gone.
void send_frame(const FileDescriptor& socket, const std::string& payload, Deadline deadline);
std::string receive_frame(const FileDescriptor& socket, size_t limit, Deadline deadline);

}  // namespace zerorun
