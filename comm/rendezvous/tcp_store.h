#pragma once

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

}  // namespace zerorun
