#include "launcher/control_server.h"

#include <sys/socket.h>

#include <chrono>
#include <utility>

namespace zerorun {

namespace {

constexpr size_t kMaxStrangers = 1024;
constexpr std::chrono::seconds kIntroductionTime{10};

}  // namespace

ControlServer::ControlServer(Listener listener) : listener_(std::move(listener)) {
  listen_on(listener_);
}

std::vector<int> ControlServer::descriptors() const {
  std::vector<int> found = {listener_.socket.get()};
  for (const Stranger& stranger : strangers_) {
    if (stranger.connection.open()) found.push_back(stranger.connection.fd());
  }
  return found;
}

void ControlServer::accept_new() {
  for (;;) {
    FileDescriptor socket(
        ::accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    if (strangers_.size() >= kMaxStrangers) strangers_.pop_front();
    strangers_.push_back({.connection = ControlConnection(std::move(socket)),
                          .since = ControlConnection::Clock::now()});
  }
}

std::vector<ControlServer::Arrival> ControlServer::service(const Accepts& accepts) {
  accept_new();
  std::vector<Arrival> arrivals;
  const auto now = ControlConnection::Clock::now();
  for (auto stranger = strangers_.begin(); stranger != strangers_.end();) {
    for (ControlMessage& message : stranger->connection.service()) {
      if (stranger->said.empty()) stranger->said.push_back(std::move(message));
    }
    const bool introduced = !stranger->said.empty() && stranger->said.front().is("join");
    if (introduced && stranger->connection.open() && accepts(stranger->said.front())) {
      stranger->connection.trust();
      arrivals.push_back({std::move(stranger->connection), std::move(stranger->said.front())});
      stranger = strangers_.erase(stranger);
    } else if (!stranger->connection.open() || now - stranger->since > kIntroductionTime) {
      stranger = strangers_.erase(stranger);
    } else {
      ++stranger;
    }
  }
  return arrivals;
}

}  // namespace zerorun
