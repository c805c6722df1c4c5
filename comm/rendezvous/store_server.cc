#include "comm/rendezvous/store_server.h"

#include <poll.h>
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
#include "os/peer_user.h"

namespace zerorun {

namespace {

// Limits of clients that are not authenticated.
constexpr size_t kMaxUnauthenticated = 64;
constexpr std::chrono::seconds kGreetingTime{10};

// The comparison takes a time that depends on the lengths only.
bool same_secret(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

}  // namespace

StoreServer::StoreServer(Listener listener, std::string secret, std::shared_ptr<MemoryStore> values)
    : listener_(std::move(listener)),
      secret_(std::move(secret)),
      values_(std::move(values)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      process_(getpid()) {
  if (!wake_) fail<CommError>("cannot make an eventfd for the rendezvous store");
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
  for (const Connection& connection : connections_) ::shutdown(connection.socket.get(), SHUT_RDWR);
}

void StoreServer::notify() const { eventfd_write(wake_.get(), 1); }

void StoreServer::run() {
  while (!stopping_) {
    wait_for_events();
    eventfd_t count = 0;
    const bool changed = eventfd_read(wake_.get(), &count) == 0;
    accept_new();
    for (Connection& connection : connections_) {
      try {
        serve(connection, changed);
      } catch (const std::exception&) {
        connection.closing = true;  // a peer's own side reports why
        connection.to_send.clear();
      }
    }
    drop_unauthenticated();
  }
}

void StoreServer::wait_for_events() {
  std::vector<pollfd> entries = {{wake_.get(), POLLIN, 0}, {listener_.socket.get(), POLLIN, 0}};
  for (const Connection& connection : connections_) {
    // A client that has closed its side stays readable for ever: only its answer is left to send.
    const short in = connection.closing ? 0 : POLLIN;
    const short events = connection.to_send.empty() ? in : in | POLLOUT;
    entries.push_back({connection.socket.get(), events, 0});
  }
  constexpr int kMilliseconds = 1000;  // to drop silent clients in time
  ::poll(entries.data(), entries.size(), kMilliseconds);
  size_t entry = 2;
  for (Connection& connection : connections_) {
    connection.ready = (entries[entry++].revents & ~POLLOUT) != 0;
  }
}

void StoreServer::accept_new() {
  while (true) {
    FileDescriptor socket(
        ::accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      // Out of descriptors: there is nothing to do but to wait until one is free.
      if (errno == EMFILE || errno == ENFILE) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      return;
    }
    Connection& added = connections_.emplace_back();
    added.socket = std::move(socket);
    added.opened = std::chrono::steady_clock::now();
    added.ready = true;  // most greet at once
  }
}

void StoreServer::drop_unauthenticated() {
  const Deadline now = std::chrono::steady_clock::now();
  size_t unauthenticated = 0;
  // From the newest on, so that the oldest go first.
  for (auto connection = connections_.rbegin(); connection != connections_.rend(); ++connection) {
    if (connection->known) continue;
    ++unauthenticated;
    if (unauthenticated <= kMaxUnauthenticated && now - connection->opened <= kGreetingTime)
      continue;
    connection->closing = true;
    connection->to_send.clear();
  }
  connections_.remove_if([](const Connection& connection) {
    return connection.closing && connection.to_send.empty();
  });
}

void StoreServer::serve(Connection& connection, bool changed) {
  // Few of a thousand clients have said something since the last time.
  if (connection.ready && !connection.closing) receive(connection);
  const bool look = changed || connection.ready;
  connection.ready = false;
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
  if (connection.wanted && look) {
    if (const std::optional<std::string> value = values_->find(*connection.wanted)) {
      connection.to_send += frame_of(store_protocol::kGranted + *value);
      connection.wanted.reset();
    }
  }
  if (connection.to_send.empty()) return;
  const ssize_t sent = ::send(connection.socket.get(), connection.to_send.data(),
                              connection.to_send.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent > 0) connection.to_send.erase(0, static_cast<size_t>(sent));
  if (sent < 0 && errno != EAGAIN && errno != EINTR) {
    connection.closing = true;
    connection.to_send.clear();
  }
}

void StoreServer::receive(Connection& connection) {
  std::array<char, 16384> chunk;
  const ssize_t count = ::recv(connection.socket.get(), chunk.data(), chunk.size(), 0);
  if (count > 0) connection.received.append(chunk.data(), static_cast<size_t>(count));
  connection.closing = count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
}

void StoreServer::greet(Connection& connection, const std::string& request) const {
  const std::string_view greeting = request;
  // Without a secret everybody says the right one.
  connection.known = greeting.starts_with(store_protocol::kHello) &&
                     same_secret(greeting.substr(store_protocol::kHello.size()), secret_) &&
                     (!secret_.empty() || user_of_peer(connection.socket) == geteuid());
  connection.to_send +=
      frame_of({connection.known ? store_protocol::kGranted : store_protocol::kDenied});
  connection.closing = !connection.known;
}

void StoreServer::answer(Connection& connection, const std::string& request) {
  if (request.starts_with(store_protocol::kGet)) {
    connection.wanted = request.substr(1);
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
  notify();
  connection.to_send += frame_of({store_protocol::kGranted});
}

}  // namespace zerorun
