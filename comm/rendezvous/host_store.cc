#include "comm/rendezvous/host_store.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <random>
#include <span>
#include <string>

#include "comm/rendezvous/tcp_store.h"
#include "os/socket.h"

namespace zerorun {

namespace {

using Address = std::array<int64_t, 5>;  // the port, and a secret

std::string secret_of(const Address& words) {
  return fmt::format("{:x}", fmt::join(words.begin() + 1, words.end(), ""));
}

}  // namespace

std::shared_ptr<Store> make_host_store(Communicator& comm, Stream& stream,
                                       std::chrono::milliseconds timeout) {
  Address words{};
  TcpStoreOptions options{.serve = comm.rank() == 0, .timeout = timeout};
  std::shared_ptr<Store> store;
  if (options.serve) {
    std::random_device random;
    for (size_t i = 1; i < words.size(); ++i) {
      words[i] = static_cast<int64_t>(uint64_t{random()} << 32 | random());
    }
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

}  // namespace zerorun
