#include "launcher/control/control_server.h"

#include <chrono>
#include <utility>

namespace zerorun {

namespace {

constexpr size_t kMaxUnauthenticated = 1024;
constexpr std::chrono::seconds kIntroductionTime{10};

}  // namespace

ControlServer::ControlServer(Listener listener) : listener_(std::move(listener)) {
  listen_on(listener_);
}

std::vector<int> ControlServer::descriptors() const {
  std::vector<int> found = {listener_.socket.get()};
  for (const Unauthenticated& client : unauthenticated_) {
    // Who has said who it is waits until it is let in, whatever else it says.
    if (client.said.empty()) found.push_back(client.connection.fd());
  }
  return found;
}

void ControlServer::accept_new() {
  for (;;) {
    FileDescriptor socket = accept_from(listener_);
    if (!socket) return;
    if (unauthenticated_.size() >= kMaxUnauthenticated) unauthenticated_.pop_front();
    unauthenticated_.push_back({.connection = ControlConnection(std::move(socket)),
                                .since = ControlConnection::Clock::now()});
  }
}

std::vector<ControlServer::Arrival> ControlServer::service(const Accepts& accepts) {
  accept_new();
  std::vector<Arrival> arrivals;
  const auto now = ControlConnection::Clock::now();
  for (auto client = unauthenticated_.begin(); client != unauthenticated_.end();) {
    client->connection.service();
    if (client->said.empty()) {
      if (auto message = client->connection.next()) client->said.push_back(*std::move(message));
    }
    const bool introduced = !client->said.empty() && client->said.front().is("join");
    if (introduced && client->connection.open() && accepts(client->said.front())) {
      client->connection.trust();
      arrivals.push_back({std::move(client->connection), std::move(client->said.front())});
      client = unauthenticated_.erase(client);
    } else if (!client->connection.open() || now - client->since > kIntroductionTime) {
      client = unauthenticated_.erase(client);
    } else {
      ++client;
    }
  }
  return arrivals;
}

}  // namespace zerorun
