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

struct Listener {
  FileDescriptor socket;  // non-blocking
  uint16_t port = 0;
};
// Listens on `host` if that is a loopback address, else on all addresses. Port 0: any free one.
// Throws CommError naming the port when it is in use.
Listener listen_on(const std::string& host, uint16_t port);

// The other side has closed the connection, or it broke.
class Dropped : public CommError {
 public:
  using CommError::CommError;
};

// What it means that nobody listens.
enum class Absence { not_yet, gone };
// Connects, and tries again until the deadline while nobody listens yet. Throws CommError; at once,
// and Dropped, when who listened is gone.
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
