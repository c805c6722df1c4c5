#include "os/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "core/check.h"
#include "os/address.h"

namespace zerorun {

namespace {

using Clock = std::chrono::steady_clock;

std::string error_text(int error) { return std::strerror(error); }

void set_option(int socket, int level, int option) {
  constexpr int kOn = 1;
  setsockopt(socket, level, option, &kOn, sizeof(kOn));
}

int milliseconds_until(Deadline deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count() + 1;
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1000));
}

// Waits until the socket is ready for `events`; false at the deadline.
bool wait_ready(const FileDescriptor& socket, short events, Deadline deadline) {
  while (Clock::now() < deadline) {
    pollfd entry{socket.get(), events, 0};
    if (::poll(&entry, 1, milliseconds_until(deadline)) > 0) return true;
  }
  return false;
}

// A TCP connection to a free port of one's own host may meet itself.
bool is_own_peer(const FileDescriptor& socket) {
  const auto own = address_of(socket.get());
  const auto peer = address_of_peer(socket.get());
  return own && peer && std::memcmp(&*own, &*peer, sizeof(*own)) == 0;
}

// Sets `connected`, or returns the error.
int try_connect(const addrinfo& address, Deadline deadline, FileDescriptor& connected) {
  FileDescriptor socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return errno;
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return errno;
    if (!wait_ready(socket, POLLOUT, deadline)) return ETIMEDOUT;
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return error;
  }
  if (is_own_peer(socket)) return ECONNREFUSED;
  set_option(socket.get(), IPPROTO_TCP, TCP_NODELAY);
  connected = std::move(socket);
  return 0;
}

std::optional<uint16_t> bound_port_of(const FileDescriptor& socket) {
  const auto bound = address_of(socket.get());
  if (!bound || (bound->ss_family != AF_INET && bound->ss_family != AF_INET6)) return std::nullopt;
  // sin_port and sin6_port lie at the same place.
  return ntohs(reinterpret_cast<const sockaddr_in&>(*bound).sin_port);
}

[[noreturn]] void fail_for_busy_port(const std::string& host, uint16_t port) {
  fail<CommError>("port {} on {} is in use by another program", port, host);
}

}  // namespace

Listener reserve_port(const std::string& host, uint16_t port) {
  const AddressList addresses = look_up(host, port);
  addrinfo& address = *addresses;
  FileDescriptor socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) fail<CommError>("cannot make a socket: {}", error_text(errno));
  set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR);
  if (::bind(socket.get(), address.ai_addr, address.ai_addrlen) != 0) {
    const int error = errno;
    if (error == EADDRINUSE) fail_for_busy_port(host, port);
    if (error == EADDRNOTAVAIL) fail<CommError>("'{}' is not an address of this host", host);
    fail<CommError>("cannot use port {} of {}: {}", port, host, error_text(error));
  }
  const uint16_t bound = bound_port_of(socket).value_or(0);
  return {std::move(socket), bound};
}

void listen_on(const Listener& listener) {
  if (::listen(listener.socket.get(), SOMAXCONN) == 0) return;
  if (errno == EADDRINUSE) fail_for_busy_port("this host", listener.port);
  fail<CommError>("cannot listen on port {}: {}", listener.port, error_text(errno));
}

FileDescriptor accept_from(const Listener& listener) {
  FileDescriptor socket(
      ::accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket && (errno == EMFILE || errno == ENFILE)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return socket;
}

std::optional<Listener> inherit_listener(int descriptor, uint16_t port) {
  int type = 0;
  int listens = 1;
  socklen_t size = sizeof(int);
  getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size);
  getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size);
  if (type != SOCK_STREAM || listens != 0) return std::nullopt;
  FileDescriptor socket(descriptor);
  if (bound_port_of(socket) != port) {  // it is not what the number was given for
    socket.release();
    return std::nullopt;
  }
  fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  return Listener{std::move(socket), port};
}

bool is_bound_to_loopback(const Listener& listener) {
  const auto bound = address_of(listener.socket.get());
  return bound && is_loopback(*bound);
}

ConnectionAttempt attempt_to_connect(const std::string& host, uint16_t port,
                                     std::chrono::milliseconds time) {
  ConnectionAttempt attempt;
  const AddressList addresses = look_up(host, port);
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    const int error = try_connect(*address, Clock::now() + time, attempt.socket);
    if (error == 0) break;
    attempt.failures.push_back({text_of(*address), error});
  }
  return attempt;
}

FileDescriptor connect_to(const std::string& host, uint16_t port, Deadline deadline,
                          Absence absence) {
  constexpr std::chrono::milliseconds kMaxPause(50);
  std::chrono::milliseconds pause(1);
  const Deadline started = Clock::now();
  const AddressList addresses = look_up(host, port);
  constexpr std::chrono::seconds kOneOfSeveral(3);
  const bool several = addresses->ai_next != nullptr;
  int error = 0;
  do {
    for (const addrinfo* address = addresses.get(); address != nullptr;
         address = address->ai_next) {
      FileDescriptor connected;
      const Deadline next = several ? Clock::now() + kOneOfSeveral : deadline;
      error = try_connect(*address, std::min(next, deadline), connected);
      if (error == 0) return connected;
    }
    if (error == ECONNREFUSED && absence == Absence::gone) {
      fail<Dropped>("no program listens at {} port {} any more: has it failed?", host, port);
    }
    std::this_thread::sleep_for(pause);  // it has not started yet
    pause = std::min(2 * pause, kMaxPause);
  } while (Clock::now() < deadline);
  fail<CommError>("cannot reach a program at {} port {} for {:.1f} s: {}; has it started?", host,
                  port, std::chrono::duration<double>(Clock::now() - started).count(),
                  error_text(error));
}

std::string frame_of(const std::string& payload) {
  const auto length = static_cast<uint32_t>(payload.size());
  std::string frame;
  for (int shift = 0; shift < 32; shift += 8) frame += static_cast<char>(length >> shift & 0xff);
  return frame + payload;
}

std::optional<std::string> take_frame(std::string& bytes, size_t limit) {
  constexpr size_t kLengthBytes = 4;
  if (bytes.size() < kLengthBytes) return std::nullopt;
  size_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= static_cast<size_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  if (length > limit) {
    fail<CommError>("got a message of {} bytes, at most {} are expected", length, limit);
  }
  if (bytes.size() < kLengthBytes + length) return std::nullopt;
  std::string payload = bytes.substr(kLengthBytes, length);
  bytes.erase(0, kLengthBytes + length);
  return payload;
}

void send_frame(const FileDescriptor& socket, const std::string& payload, Deadline deadline) {
  const std::string frame = frame_of(payload);
  size_t sent = 0;
  while (sent < frame.size()) {
    if (!wait_ready(socket, POLLOUT, deadline))
      fail<CommError>("the peer does not read a message before the deadline");
    const ssize_t count =
        ::send(socket.get(), frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno != EAGAIN && errno != EINTR) {
      fail<Dropped>("the connection broke: {}", error_text(errno));
    }
    if (count > 0) sent += static_cast<size_t>(count);
  }
}

std::string receive_frame(const FileDescriptor& socket, size_t limit, Deadline deadline) {
  std::string bytes;
  while (true) {
    if (std::optional<std::string> payload = take_frame(bytes, limit)) return *std::move(payload);
    if (!wait_ready(socket, POLLIN, deadline)) fail<CommError>("the peer does not answer");
    std::array<char, 4096> chunk;
    const ssize_t count = ::recv(socket.get(), chunk.data(), chunk.size(), 0);
    if (count == 0) fail<Dropped>("the peer closed the connection: has it failed?");
    if (count < 0 && errno != EAGAIN && errno != EINTR) {
      fail<Dropped>("the connection broke: {}", error_text(errno));
    }
    if (count > 0) bytes.append(chunk.data(), static_cast<size_t>(count));
  }
}

}  // namespace zerorun
