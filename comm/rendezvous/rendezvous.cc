#include "comm/rendezvous/rendezvous.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "comm/rendezvous/tcp_store.h"
#include "comm/waiting.h"
#include "config/env.h"
#include "core/check.h"
#include "core/log.h"
#include "os/address.h"

namespace zerorun {

namespace {

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
    return serve_tcp_store(*std::move(listener), options.secret);
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
