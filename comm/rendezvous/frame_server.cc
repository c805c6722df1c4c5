#include "comm/rendezvous/frame_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include "os/uninterrupted.h"
#include "zerorun/error.h"

namespace zerorun {

FrameConnection::FrameConnection(FileDescriptor socket, size_t limit)
    : socket_(std::move(socket)), open_(static_cast<bool>(socket_)), limit_(limit) {
  constexpr int kOn = 1;
  setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &kOn, sizeof(kOn));
}

void FrameConnection::send(const std::string& payload) {
  to_send_ += frame_of(payload);
  send_some();
}

void FrameConnection::send_some() {
  while (pending()) {
    const ssize_t count = uninterrupted([&] {
      return ::send(socket_.get(), to_send_.data(), to_send_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    });
    if (count < 0) {
      if (errno != EAGAIN) end();
      return;
    }
    to_send_.erase(0, static_cast<size_t>(count));
  }
}

void FrameConnection::receive() {
  std::array<char, 65536> chunk;
  while (open_ && !full()) {
    const ssize_t count = uninterrupted(
        [&] { return ::recv(socket_.get(), chunk.data(), chunk.size(), MSG_DONTWAIT); });
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) {
      open_ = false;
      return;
    }
    received_.append(chunk.data(), static_cast<size_t>(count));
  }
}

std::optional<std::string> FrameConnection::next() {
  try {
    return take_frame(received_, limit_);
  } catch (const CommError&) {
    end();
    return std::nullopt;
  }
}

void FrameConnection::end() {
  open_ = false;
  received_.clear();
  to_send_.clear();
}

FrameServer::FrameServer(Listener listener, Limits limits)
    : listener_(std::move(listener)), limits_(limits) {
  listen_on(listener_);
  poll_.watch(listener_.socket.get(), EPOLLIN, nullptr);
}

void FrameServer::accept_new() {
  constexpr int kAtOnce = 32;  // then those that are here are served
  for (int i = 0; i < kAtOnce; ++i) {
    FileDescriptor socket = accept_from(listener_);
    if (!socket) return;
    try {
      poll_.watch(socket.get(), EPOLLIN, nullptr);
    } catch (const IoError&) {  // the user watches too many descriptors already
      continue;
    }
    clients_.push_back({.connection = FrameConnection(std::move(socket), limits_.bytes),
                        .since = std::chrono::steady_clock::now()});
  }
}

bool FrameServer::is_done(Client& client, const Judge& judge, std::vector<Arrival>& arrivals) {
  constexpr std::chrono::seconds kGreetingTime{10};
  client.connection.receive();
  if (!client.greeting && (client.greeting = client.connection.next())) {
    // A client that waits to be admitted wakes nobody, whatever else it sends.
    poll_.forget(client.connection.socket().get());
  }
  if (client.greeting && client.connection.open()) {
    const Admission admission = judge(client.connection, *client.greeting);
    if (admission == Admission::admit) {
      arrivals.push_back({std::move(client.connection), *std::move(client.greeting)});
    }
    if (admission != Admission::wait) return true;
  }
  return !client.connection.open() ||
         std::chrono::steady_clock::now() - client.since > kGreetingTime;
}

std::vector<FrameServer::Arrival> FrameServer::service(const Judge& judge) {
  accept_new();
  std::vector<Arrival> arrivals;
  const auto drop = [this](auto client) {
    if (!client->greeting) poll_.forget(client->connection.socket().get());
    return clients_.erase(client);
  };
  for (auto client = clients_.begin(); client != clients_.end();) {
    client = is_done(*client, judge, arrivals) ? drop(client) : std::next(client);
  }
  while (clients_.size() > limits_.clients) drop(clients_.begin());
  return arrivals;
}

void FrameServer::shut_down() const {
  ::shutdown(listener_.socket.get(), SHUT_RDWR);
  for (const Client& client : clients_) {
    ::shutdown(client.connection.socket().get(), SHUT_RDWR);
  }
}

}  // namespace zerorun
