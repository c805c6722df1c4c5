#include "comm/rendezvous/rendezvous.h"

#include <limits>
#include <optional>

#include "comm/rendezvous/tcp_store.h"
#include "config/env.h"
#include "core/check.h"

namespace zerorun {

namespace {

std::optional<Listener> launchers_listener(uint16_t port) {
  const auto descriptor =
      read_environment_int("ZERORUN_STORE_FD", 0, std::numeric_limits<int>::max());
  if (!descriptor) return std::nullopt;
  return inherit_listener(static_cast<int>(*descriptor), port);
}

}  // namespace

std::shared_ptr<Store> rendezvous(const RankInfo& info, std::chrono::milliseconds timeout) {
  if (info.local_world_size != info.world_size) {
    fail<CommError>(
        "{} of {} ranks run on this host: ranks on several hosts are not supported yet; start all "
        "of them on one",
        info.local_world_size, info.world_size);
  }
  TcpStoreOptions options;
  // All ranks are on this host, so nobody else needs to reach rank 0, whatever MASTER_ADDR says.
  options.host = "127.0.0.1";
  options.port = info.master_port;
  options.serve = info.rank == 0;
  options.secret = info.secret;
  options.timeout = timeout;
  if (options.serve) {
    if (auto listener = launchers_listener(info.master_port)) {
      return serve_tcp_store(*std::move(listener), info.secret);
    }
  }
  return make_tcp_store(options);
}

}  // namespace zerorun
