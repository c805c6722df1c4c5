#include "comm/rendezvous/tcp_store.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "comm/rendezvous/store_server.h"
#include "comm/waiting.h"
#include "config/env.h"
#include "core/check.h"
#include "core/log.h"
#include "os/address.h"

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

// The secret of jobs on several hosts that were given none: whoever reaches the port knows it.
constexpr const char* kOpenSecret = "a job without a secret";

bool spans_hosts(const RankInfo& info) { return info.local_world_size != info.world_size; }

std::optional<Listener> launchers_listener(const RankInfo& info) {
  const auto descriptor =
      read_environment_int("ZERORUN_STORE_FD", 0, std::numeric_limits<int>::max());
  if (!descriptor) return std::nullopt;
  std::optional<Listener> listener =
      inherit_listener(static_cast<int>(*descriptor), info.master_port);
  // A socket of the loopback is none for other hosts: it makes room for one that is.
  if (listener && spans_hosts(info) && is_bound_to_loopback(*listener)) return std::nullopt;
  return listener;
}

void check_address(const RankInfo& info) {
  const bool is_here = info.rank == info.local_rank;  // rank 0 runs on this host
  if (!is_loopback(info.master_addr) && (is_here || !resolves_to_loopback(info.master_addr))) {
    return;
  }
  fail<CommError>(
      "MASTER_ADDR={} is the loopback address, at which each host finds itself, but {} of {} ranks "
      "run on this host (LOCAL_WORLD_SIZE, WORLD_SIZE): set MASTER_ADDR on all hosts to an address "
      "at which they reach rank 0's host",
      info.master_addr, info.local_world_size, info.world_size);
}

std::string secret_of(const RankInfo& info) {
  if (!info.secret.empty() || !spans_hosts(info)) return info.secret;
  Logger(info.rank, info.world_size)
      .warning(
          "ZERORUN_JOB_SECRET is not set: whoever reaches port {} of {} can join or disturb "
          "this job. The launcher sets it; where ranks are started by hand, set the same one "
          "on all hosts",
          info.master_port, info.master_addr);
  return kOpenSecret;
}

std::shared_ptr<Store> serve(const RankInfo& info, const TcpStoreOptions& options) {
  if (auto listener = launchers_listener(info)) {
    return std::make_shared<ServingTcpStore>(*std::move(listener), options.secret);
  }
  TcpStoreOptions served = options;
  if (spans_hosts(info)) served.host = any_address_like(info.master_addr);
  return make_tcp_store(served);
}

// A connection with it; says on stderr when it does not come for long.
FileDescriptor wait_for_rank_0(const RankInfo& info, const TcpStoreOptions& options) {
  const Deadline started = std::chrono::steady_clock::now();
  WaitingNotice notice;
  while (true) {
    try {
      return connect_to(
          options.host, options.port,
          started + std::min<std::chrono::steady_clock::duration>(options.timeout, notice.next()));
    } catch (const CommError& error) {
      const auto waited = std::chrono::steady_clock::now() - started;
      if (waited >= options.timeout) {
        fail<CommError>("rank {} waited {:.1f} s for rank 0 (MASTER_ADDR, MASTER_PORT): {}",
                        info.rank, std::chrono::duration<double>(waited).count(), error.what());
      }
      if (!notice.due(waited)) throw;
      Logger(info.rank, info.world_size)
          .log(LogLevel::warning,
               "rank {} has waited {:.0f} s for rank 0 to listen at {} port {} (MASTER_ADDR, "
               "MASTER_PORT)",
               info.rank, std::chrono::duration<double>(waited).count(), options.host,
               options.port);
    }
  }
}

}  // namespace

std::shared_ptr<Store> join_tcp_store(const TcpStoreOptions& options, FileDescriptor connection,
                                      Absence absence) {
  return std::make_shared<ClientTcpStore>(options, std::move(connection), absence);
}

std::shared_ptr<Store> make_tcp_store(const TcpStoreOptions& options) {
  if (options.serve) {
    try {
      return std::make_shared<ServingTcpStore>(reserve_port(options.host, options.port),
                                               options.secret);
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

std::shared_ptr<Store> rendezvous(const RankInfo& info, std::chrono::milliseconds timeout) {
  TcpStoreOptions options;
  // When all ranks are on this host nobody else needs to reach rank 0, whatever MASTER_ADDR says.
  if (spans_hosts(info)) {
    check_address(info);
    options.host = info.master_addr;
  }
  options.port = info.master_port;
  options.serve = info.rank == 0;
  options.secret = secret_of(info);
  options.timeout = timeout;
  if (options.serve) return serve(info, options);
  return join_tcp_store(options, wait_for_rank_0(info, options));
}

}  // namespace zerorun
