#include "comm/rendezvous/store_server.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <exception>
#include <utility>

#include "core/check.h"
#include "core/secret.h"
#include "os/address.h"

namespace zerorun {

namespace {

constexpr FrameServer::Limits kLimits = {.clients = 64, .bytes = store_protocol::kMaxHelloBytes};

}  // namespace

StoreServer::StoreServer(Listener listener, std::string secret, std::shared_ptr<MemoryStore> values)
    : secret_(std::move(secret)),
      values_(std::move(values)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      process_(getpid()),
      server_(std::move(listener), kLimits) {
  if (!wake_) fail<CommError>("cannot make an eventfd for the rendezvous store");
  poll_.watch(wake_.get(), EPOLLIN, &wake_);
  poll_.watch(server_.fd(), EPOLLIN, &server_);
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
  server_.shut_down();
  for (const Client& client : clients_) ::shutdown(client.connection.socket().get(), SHUT_RDWR);
}

void StoreServer::notify() const { eventfd_write(wake_.get(), 1); }

void StoreServer::run() {
  constexpr int kMilliseconds = 1000;
  const auto judge = [this](FrameConnection& client, const std::string& greeting) {
    return greet(client, greeting);
  };
  Deadline served = std::chrono::steady_clock::now();
  while (!stopping_) {
    bool changed = false;
    const bool waits = server_.has_unauthenticated();
    const auto events = poll_.wait(waits ? kMilliseconds : -1);
    const Deadline now = std::chrono::steady_clock::now();
    bool arriving = waits && now - served >= std::chrono::milliseconds(kMilliseconds);
    for (const epoll_event& event : events) {
      if (event.data.ptr == &wake_) {
        eventfd_t count = 0;
        changed = eventfd_read(wake_.get(), &count) == 0;
      } else if (event.data.ptr == &server_) {
        arriving = true;
      } else {
        Client& client = *static_cast<Client*>(event.data.ptr);
        if ((event.events & ~EPOLLOUT) != 0) client.connection.receive();
        // One whose buffer is full reads nothing, so it would not see that the client has died.
        const bool died = (event.events & (EPOLLHUP | EPOLLERR)) != 0;
        if (died && client.connection.full()) client.connection.end();
        serve(client);
      }
    }
    if (changed) {  // this process has set a value: it does not say which
      std::vector<std::string> keys;
      for (const auto& [key, clients] : waiting_) keys.push_back(key);
      for (const std::string& key : keys) answer_waiting(key);
    }
    if (arriving) {
      served = now;
      for (auto& [connection, greeting] : server_.service(judge)) add(std::move(connection));
    }
    remove_ended();
  }
}

FrameServer::Admission StoreServer::greet(FrameConnection& client,
                                          std::string_view greeting) const {
  // Without a secret everybody says the right one.
  const bool known = greeting.starts_with(store_protocol::kHello) &&
                     same_secret(greeting.substr(store_protocol::kHello.size()), secret_) &&
                     (!secret_.empty() || user_of_peer(client.socket()) == geteuid());
  client.send({known ? store_protocol::kGranted : store_protocol::kDenied});
  return known ? FrameServer::Admission::admit : FrameServer::Admission::deny;
}

void StoreServer::add(FrameConnection connection) {
  connection.set_limit(store_protocol::kMaxBytes);
  Client& client = clients_.emplace_back(Client{.connection = std::move(connection)});
  try {
    poll_.watch(client.connection.socket().get(), client.events, &client);
  } catch (const IoError&) {  // the user watches too many descriptors already
    return clients_.pop_back();
  }
  serve(client);
}

void StoreServer::remove_ended() {
  if (!std::exchange(has_ended_, false)) return;
  clients_.remove_if([this](const Client& client) {
    if (client.connection.open() || client.connection.pending()) return false;
    poll_.forget(client.connection.socket().get());
    if (client.wanted) {
      const auto clients = waiting_.find(*client.wanted);
      std::erase(clients->second, &client);
      if (clients->second.empty()) waiting_.erase(clients);
    }
    return true;
  });
}

void StoreServer::serve(Client& client) {
  FrameConnection& connection = client.connection;
  try {
    while (!client.wanted) {
      const std::optional<std::string> request = connection.next();
      if (!request) break;
      answer(client, *request);
    }
    connection.send_some();
    // A client that has closed its side stays readable for ever: only its answer is left to send.
    // So does one that sends more and more while its kGet waits.
    const bool receives = connection.open() && !connection.full();
    const uint32_t events = (receives ? EPOLLIN : 0U) | (connection.pending() ? EPOLLOUT : 0U);
    if (events != client.events) poll_.change(connection.socket().get(), events, &client);
    client.events = events;
  } catch (const std::exception&) {
    connection.end();  // a peer's own side reports why
  }
  if (!connection.open() && !connection.pending()) has_ended_ = true;
}

void StoreServer::answer(Client& client, const std::string& request) {
  FrameConnection& connection = client.connection;
  if (request.starts_with(store_protocol::kGet)) {
    std::string key = request.substr(1);
    if (const std::optional<std::string> value = values_->find(key)) {
      connection.send(store_protocol::kGranted + *value);
    } else {
      waiting_[key].push_back(&client);
      client.wanted = std::move(key);
    }
    return;
  }
  if (request.starts_with(store_protocol::kFind)) {
    const std::optional<std::string> value = values_->find(request.substr(1));
    connection.send(value ? store_protocol::kGranted + *value
                          : std::string{store_protocol::kAbsent});
    return;
  }
  std::string rest = request.empty() ? "" : request.substr(1);
  const std::optional<std::string> key = take_frame(rest, rest.size());
  if (!request.starts_with(store_protocol::kSet) || !key) {
    fail<CommError>("got a request of {} bytes that is neither get, find nor set", request.size());
  }
  values_->set(*key, rest);
  connection.send({store_protocol::kGranted});
  answer_waiting(*key);
}

void StoreServer::answer_waiting(const std::string& key) {
  const auto waiting = waiting_.find(key);
  if (waiting == waiting_.end()) return;
  const std::optional<std::string> value = values_->find(key);
  if (!value) return;
  const std::vector<Client*> clients = std::move(waiting->second);
  waiting_.erase(waiting);
  for (Client* client : clients) {
    client->wanted.reset();
    client->connection.send(store_protocol::kGranted + *value);
    serve(*client);
  }
}

void MemoryStore::set(const std::string& key, const std::string& value) {
  {
    const std::lock_guard lock(mutex_);
    values_.insert_or_assign(key, value);
  }
  changed_.notify_all();
}

std::string MemoryStore::get(const std::string& key, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, timeout, [&] { return values_.contains(key); })) {
    fail<CommError>("waited {:.1f} s for '{}' in the store: the rank that sets it has not started",
                    std::chrono::duration<double>(timeout).count(), key);
  }
  return values_.at(key);
}

std::optional<std::string> MemoryStore::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

std::shared_ptr<Store> make_memory_store() { return std::make_shared<MemoryStore>(); }

}  // namespace zerorun
