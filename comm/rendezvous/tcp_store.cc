#include "comm/rendezvous/tcp_store.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "comm/rendezvous/store_server.h"
#include "core/check.h"

namespace zerorun {

namespace {

// Calls a function that talks to rank 0, and names rank 0 in its errors.
template <typename Function>
auto ask_rank_0(const TcpStoreOptions& options, const std::string& what, const Function& function) {
  const auto explain = [&](const CommError& error) {
    return fmt::format("{} the store of rank 0 at {} port {}: {}", what, options.host, options.port,
                       error.what());
  };
  try {
    return function();
  } catch (const Dropped& error) {
    throw Dropped(explain(error));
  } catch (const CommError& error) {
    throw CommError(explain(error));
  }
}

// Rank 0's side: the values are here.
class ServingTcpStore final : public Store {
 public:
  ServingTcpStore(Listener listener, std::string secret)
      : server_(std::move(listener), std::move(secret), values_) {}

  void set(const std::string& key, const std::string& value) override {
    values_->set(key, value);
    server_.notify();
  }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    return values_->get(key, timeout);
  }
  std::optional<std::string> find(const std::string& key) override { return values_->find(key); }
  uint16_t port() const override { return server_.port(); }

 private:
  const std::shared_ptr<MemoryStore> values_ = std::make_shared<MemoryStore>();
  StoreServer server_;
};

// The other ranks' side. Each request has a connection of its own while it lasts, so that a get
// that waits does not keep others from setting.
class ClientTcpStore final : public Store {
 public:
  ClientTcpStore(const TcpStoreOptions& options, FileDescriptor connection, Absence absence)
      : options_(options) {
    const Deadline deadline = Clock::now() + options_.timeout;
    idle_.push_back(ask_rank_0(options_, "cannot join",
                               [&] { return greeted(std::move(connection), deadline, absence); }));
  }

  void set(const std::string& key, const std::string& value) override {
    request("cannot set '" + key + "' in", store_protocol::kSet + frame_of(key) + value,
            answer_timeout());
  }
  std::optional<std::string> find(const std::string& key) override {
    return request("looked for '" + key + "' in", store_protocol::kFind + key, answer_timeout());
  }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    auto value = request("waited for '" + key + "' in", store_protocol::kGet + key, timeout);
    if (!value) fail<CommError>("rank 0 refused a request");
    return *std::move(value);
  }
  uint16_t port() const override { return options_.port; }

 private:
  using Clock = std::chrono::steady_clock;

  // The value that was asked for, if there is one. `what`: for errors.
  std::optional<std::string> request(const std::string& what, const std::string& text,
                                     std::chrono::milliseconds timeout) {
    if (text.size() > store_protocol::kMaxBytes) {
      fail<CommError>("got {} bytes for the store, at most {} are allowed", text.size(),
                      store_protocol::kMaxBytes);
    }
    const std::string answer = ask_rank_0(options_, what, [&] { return exchange(text, timeout); });
    if (answer == std::string{store_protocol::kAbsent}) return std::nullopt;
    if (!answer.starts_with(store_protocol::kGranted)) fail<CommError>("rank 0 refused a request");
    return answer.substr(1);
  }

  std::string exchange(const std::string& text, std::chrono::milliseconds timeout) {
    const Deadline deadline = Clock::now() + timeout;
    FileDescriptor connection = take_connection(deadline);
    send_frame(connection, text, deadline);
    std::string answer = receive_frame(connection, store_protocol::kMaxBytes + 1, deadline);
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(connection));
    return answer;
  }

  // The timeout of requests that wait for rank 0 alone.
  std::chrono::milliseconds answer_timeout() const {
    constexpr std::chrono::milliseconds kMaxAnswerTime{30000};
    return std::min(options_.timeout, kMaxAnswerTime);
  }

  FileDescriptor take_connection(Deadline deadline) {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        FileDescriptor connection = std::move(idle_.back());
        idle_.pop_back();
        return connection;
      }
    }
    return greeted(connect_to(options_.host, options_.port, deadline, Absence::gone), deadline,
                   Absence::gone);
  }

  // The connection, or another one, once rank 0 has let it in.
  FileDescriptor greeted(FileDescriptor connection, Deadline deadline, Absence absence) const {
    while (true) {
      try {
        greet(connection, deadline);
        return connection;
      } catch (const Dropped&) {
        if (Clock::now() >= deadline) throw;
      }
      // Rank 0 drops clients that are slow to greet when others crowd its port.
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      connection = connect_to(options_.host, options_.port, deadline, absence);
    }
  }

  void greet(const FileDescriptor& connection, Deadline deadline) const {
    send_frame(connection, std::string(store_protocol::kHello) + options_.secret, deadline);
    const std::string answer = receive_frame(connection, store_protocol::kMaxHelloBytes, deadline);
    if (answer == std::string{store_protocol::kGranted}) return;
    fail<CommError>(
        "it refused this rank: is ZERORUN_JOB_SECRET the same on all ranks, and the port used by "
        "this job only? Without a secret all ranks must be of one user and host");
  }

  const TcpStoreOptions options_;
  std::mutex mutex_;
  std::vector<FileDescriptor> idle_;  // guarded by mutex_
};

using Address = std::array<int64_t, 5>;  // the port, and a secret

std::string secret_of(const Address& words) {
  return fmt::format("{:x}", fmt::join(words.begin() + 1, words.end(), ""));
}

}  // namespace

std::shared_ptr<Store> serve_tcp_store(Listener listener, std::string secret) {
  return std::make_shared<ServingTcpStore>(std::move(listener), std::move(secret));
}

std::shared_ptr<Store> join_tcp_store(const TcpStoreOptions& options, FileDescriptor connection,
                                      Absence absence) {
  return std::make_shared<ClientTcpStore>(options, std::move(connection), absence);
}

std::shared_ptr<Store> make_tcp_store(const TcpStoreOptions& options) {
  if (options.serve) {
    try {
      return serve_tcp_store(reserve_port(options.host, options.port), options.secret);
    } catch (const CommError& error) {
      fail<CommError>(
          "rank 0 cannot serve its peers: {}; choose another address (MASTER_ADDR) or "
          "port (--master_port, MASTER_PORT)",
          error.what());
    }
  }
  return join_tcp_store(options, ask_rank_0(options, "cannot join", [&] {
                          return connect_to(options.host, options.port,
                                            std::chrono::steady_clock::now() + options.timeout);
                        }));
}

std::shared_ptr<Store> make_host_store(Communicator& comm, Stream& stream,
                                       std::chrono::milliseconds timeout) {
  Address words{};
  TcpStoreOptions options{.serve = comm.rank() == 0, .timeout = timeout};
  std::shared_ptr<Store> store;
  if (options.serve) {
    std::random_device random;
    for (int64_t& word : words) word = static_cast<int64_t>(uint64_t{random()} << 32 | random());
    options.secret = secret_of(words);
    store = make_tcp_store(options);
    words[0] = bound_port(*store);
  }
  const TensorView view = view_of(std::span<int64_t>(words));
  comm.broadcast(view, 0, stream, "address of another communicator's store").synchronize();
  if (store != nullptr) return store;
  options.port = static_cast<uint16_t>(words[0]);
  options.secret = secret_of(words);
  const Deadline deadline = std::chrono::steady_clock::now() + timeout;
  return join_tcp_store(options, connect_to(options.host, options.port, deadline, Absence::gone),
                        Absence::gone);
}

uint16_t bound_port(const Store& store) {
  ZR_CHECK(store.port() != 0, "got a store that is not a TCP store");
  return store.port();
}

}  // namespace zerorun
