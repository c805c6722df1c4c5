#pragma once

#include <memory>
#include <string>

#include "os/socket.h"
#include "zerorun/communicator.h"

namespace zerorun {

// Rank 0's side of a TCP store, on a port that is reserved or listened on already.
std::shared_ptr<Store> serve_tcp_store(Listener listener, std::string secret);
// The other ranks' side, on a connection with rank 0's.
std::shared_ptr<Store> join_tcp_store(const TcpStoreOptions& options, FileDescriptor connection);

}  // namespace zerorun
