#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "os/socket.h"
#include "zerorun/communicator.h"

namespace zerorun {

// Serves a TCP store on rank 0. `listener`: a socket on a port that is reserved or already listened
// on. `secret`: authenticates clients; empty: see StoreServer.
std::shared_ptr<Store> serve_tcp_store(Listener listener, std::string secret);
// The store of the other ranks, over a connection to rank 0's server. `absence`: what it means if
// the server drops the connection before it has answered, and does not listen any more.
std::shared_ptr<Store> join_tcp_store(const TcpStoreOptions& options, FileDescriptor connection,
                                      Absence absence = Absence::not_yet);
// A store for the ranks of `comm`, which are on one host; it is served on a free port. Collective.
std::shared_ptr<Store> make_host_store(Communicator& comm, Stream& stream,
                                       std::chrono::milliseconds timeout);

}  // namespace zerorun
