#include "launcher/control/control_connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include "os/socket.h"
#include "os/uninterrupted.h"
#include "zerorun/error.h"

namespace zerorun {

ControlConnection::ControlConnection(FileDescriptor socket) : socket_(std::move(socket)) {
  constexpr int kOn = 1;
  setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &kOn, sizeof(kOn));
}

short ControlConnection::events() const {
  return static_cast<short>(to_send_.empty() ? POLLIN : POLLIN | POLLOUT);
}

void ControlConnection::send(const ControlMessage& message) {
  if (!open()) return;
  to_send_ += frame_of(message.encode());
  write_some();
}

void ControlConnection::write_some() {
  while (open() && !to_send_.empty()) {
    const ssize_t count = uninterrupted([&] {
      return ::send(fd(), to_send_.data(), to_send_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    });
    if (count < 0) {
      if (errno != EAGAIN) close();
      return;
    }
    to_send_.erase(0, static_cast<size_t>(count));
  }
}

void ControlConnection::service() {
  write_some();
  std::array<char, 65536> chunk;
  while (open() && received_.size() <= limit_) {  // else whole messages first
    const ssize_t count =
        uninterrupted([&] { return ::recv(fd(), chunk.data(), chunk.size(), MSG_DONTWAIT); });
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) return socket_.close();  // what came before is still there for next()
    received_.append(chunk.data(), static_cast<size_t>(count));
  }
}

std::optional<ControlMessage> ControlConnection::next() {
  try {
    const auto frame = take_frame(received_, limit_);
    if (!frame) return std::nullopt;
    heard_ = Clock::now();
    return ControlMessage::decode(*frame);
  } catch (const CommError&) {
    close();  // not a launcher
    return std::nullopt;
  }
}

void ControlConnection::close() {
  socket_.close();
  received_.clear();
}

void ControlConnection::beat(Clock::time_point now) {
  if (now - beaten_ < kBeat) return;
  beaten_ = now;
  send(ControlMessage("alive"));
}

void ControlConnection::flush(std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (open() && !to_send_.empty() && Clock::now() < deadline) {
    pollfd room = {fd(), POLLOUT, 0};
    poll(&room, 1, static_cast<int>(kBeat.count()));
    write_some();
  }
}

}  // namespace zerorun
