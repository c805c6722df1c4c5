#include "comm/rendezvous/store_server.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/secret.h"
#include "os/peer_user.h"

namespace zerorun {

namespace {

// Limits of clients that are not authenticated.
constexpr size_t kMaxUnauthenticated = 64;
constexpr std::chrono::seconds kGreetingTime{10};

}  // namespace

StoreServer::StoreServer(Listener listener, std::string secret, std::shared_ptr<MemoryStore> values)
    : listener_(std::move(listener)),
      secret_(std::move(secret)),
      values_(std::move(values)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      process_(getpid()) {
  if (!wake_) fail<CommError>("cannot make an eventfd for the rendezvous store");
  poll_.watch(wake_.get(), EPOLLIN, &wake_);
  poll_.watch(listener_.socket.get(), EPOLLIN, &listener_);
  thread_ = std::thread([this] { run(); });
}

StoreServer::~StoreServer() {
  if (getpid() != process_) {  // in a forked child, which does not have the thread
    thread_.detach();
    return;
  }
  stopping_ = true;
  notify();
  thread_.join();
  // A child that lives on, a data loader's worker, may hold the sockets: closing them ends nothing.
  ::shutdown(listener_.socket.get(), SHUT_RDWR);
  for (const auto* connections : {&unauthenticated_, &known_}) {
    for (const Connection& connection : *connections) {
      ::shutdown(connection.socket.get(), SHUT_RDWR);
    }
  }
}

void StoreServer::notify() const { eventfd_write(wake_.get(), 1); }

void StoreServer::run() {
  constexpr int kMilliseconds = 1000;  // to drop silent clients in time
  while (!stopping_) {
    bool changed = false;
    for (const epoll_event& event : poll_.wait(unauthenticated_.empty() ? -1 : kMilliseconds)) {
      if (event.data.ptr == &wake_) {
        eventfd_t count = 0;
        changed = eventfd_read(wake_.get(), &count) == 0;
      } else if (event.data.ptr == &listener_) {
        accept_new();
      } else {
        Connection& connection = *static_cast<Connection*>(event.data.ptr);
        if ((event.events & ~EPOLLOUT) != 0 && !connection.closing) receive(connection);
        serve(connection);
      }
    }
    if (changed) {  // this process has set a value: it does not say which
      std::vector<std::string> keys;
      for (const auto& [key, clients] : waiting_) keys.push_back(key);
      for (const std::string& key : keys) answer_waiting(key);
    }
    drop_unauthenticated();
    close_done();
  }
}

void StoreServer::accept_new() {
  constexpr int kAtOnce = 32;  // then those that are here are served
  for (int i = 0; i < kAtOnce; ++i) {
    FileDescriptor socket = accept_from(listener_);
    if (!socket) return;
    Connection& added = unauthenticated_.emplace_back();
    added.socket = std::move(socket);
    added.opened = std::chrono::steady_clock::now();
    added.events = EPOLLIN;
    try {
      poll_.watch(added.socket.get(), added.events, &added);
    } catch (const IoError&) {  // the user watches too many descriptors already
      unauthenticated_.pop_back();
      continue;
    }
    receive(added);  // most greet at once
    serve(added);
  }
}

void StoreServer::drop_unauthenticated() {
  const Deadline now = std::chrono::steady_clock::now();
  size_t excess = unauthenticated_.size() - std::min(unauthenticated_.size(), kMaxUnauthenticated);
  for (Connection& connection : unauthenticated_) {
    if (excess == 0 && now - connection.opened <= kGreetingTime) break;
    excess -= std::min<size_t>(excess, 1);
    drop(connection);
  }
}

void StoreServer::drop(Connection& connection) {
  connection.closing = true;
  connection.to_send.clear();
  has_done_ = true;
}

void StoreServer::close_done() {
  if (!has_done_) return;
  has_done_ = false;
  const auto done = [this](const Connection& connection) {
    if (!connection.closing || !connection.to_send.empty()) return false;
    poll_.forget(connection.socket.get());
    if (connection.wanted) {
      const auto clients = waiting_.find(*connection.wanted);
      std::erase(clients->second, &connection);
      if (clients->second.empty()) waiting_.erase(clients);
    }
    return true;
  };
  unauthenticated_.remove_if(done);
  known_.remove_if(done);
}

void StoreServer::serve(Connection& connection) {
  try {
    answer_requests(connection);
    send(connection);
  } catch (const std::exception&) {
    drop(connection);  // a peer's own side reports why
  }
}

void StoreServer::answer_requests(Connection& connection) {
  while (!connection.closing && !connection.wanted) {
    const size_t limit =
        connection.known ? store_protocol::kMaxBytes : store_protocol::kMaxHelloBytes;
    const std::optional<std::string> request = take_frame(connection.received, limit);
    if (!request) break;
    if (connection.known) {
      answer(connection, *request);
    } else {
      greet(connection, *request);
    }
  }
}

void StoreServer::send(Connection& connection) {
  if (!connection.to_send.empty()) {
    const ssize_t sent = ::send(connection.socket.get(), connection.to_send.data(),
                                connection.to_send.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) connection.to_send.erase(0, static_cast<size_t>(sent));
    if (sent < 0 && errno != EAGAIN && errno != EINTR) drop(connection);
  }
  if (connection.closing && connection.to_send.empty()) has_done_ = true;
  // A client that has closed its side stays readable for ever: only its answer is left to send.
  uint32_t events = 0;
  if (!connection.closing) events |= EPOLLIN;
  if (!connection.to_send.empty()) events |= EPOLLOUT;
  if (events == connection.events) return;
  connection.events = events;
  poll_.change(connection.socket.get(), events, &connection);
}

void StoreServer::receive(Connection& connection) {
  std::array<char, 16384> chunk;
  const ssize_t count = ::recv(connection.socket.get(), chunk.data(), chunk.size(), 0);
  if (count > 0) connection.received.append(chunk.data(), static_cast<size_t>(count));
  connection.closing = count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
}

void StoreServer::greet(Connection& connection, const std::string& request) {
  const std::string_view greeting = request;
  // Without a secret everybody says the right one.
  connection.known = greeting.starts_with(store_protocol::kHello) &&
                     same_secret(greeting.substr(store_protocol::kHello.size()), secret_) &&
                     (!secret_.empty() || user_of_peer(connection.socket) == geteuid());
  connection.to_send +=
      frame_of({connection.known ? store_protocol::kGranted : store_protocol::kDenied});
  connection.closing = !connection.known;
  if (!connection.known) return;
  const auto place = std::find_if(unauthenticated_.begin(), unauthenticated_.end(),
                                  [&](const Connection& one) { return &one == &connection; });
  known_.splice(known_.end(), unauthenticated_, place);
}

void StoreServer::answer(Connection& connection, const std::string& request) {
  if (request.starts_with(store_protocol::kGet)) {
    std::string key = request.substr(1);
    if (const std::optional<std::string> value = values_->find(key)) {
      connection.to_send += frame_of(store_protocol::kGranted + *value);
    } else {
      waiting_[key].push_back(&connection);
      connection.wanted = std::move(key);
    }
    return;
  }
  if (request.starts_with(store_protocol::kFind)) {
    const std::optional<std::string> value = values_->find(request.substr(1));
    connection.to_send +=
        frame_of(value ? store_protocol::kGranted + *value : std::string{store_protocol::kAbsent});
    return;
  }
  std::string rest = request.empty() ? "" : request.substr(1);
  const std::optional<std::string> key = take_frame(rest, rest.size());
  if (!request.starts_with(store_protocol::kSet) || !key) {
    fail<CommError>("got a request of {} bytes that is neither get, find nor set", request.size());
  }
  values_->set(*key, rest);
  connection.to_send += frame_of({store_protocol::kGranted});
  answer_waiting(*key);
}

void StoreServer::answer_waiting(const std::string& key) {
  const auto waiting = waiting_.find(key);
  if (waiting == waiting_.end()) return;
  const std::optional<std::string> value = values_->find(key);
  if (!value) return;
  const std::vector<Connection*> clients = std::move(waiting->second);
  waiting_.erase(waiting);
  for (Connection* client : clients) {
    client->wanted.reset();
    client->to_send += frame_of(store_protocol::kGranted + *value);
    serve(*client);
  }
}

}  // namespace zerorun
