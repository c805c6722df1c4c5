#pragma once

#include <chrono>
#include <memory>

#include "os/socket.h"
#include "zerorun/communicator.h"

namespace zerorun {

// The store of all ranks but 0, over a connection to rank 0's server. `absence`: what it means if
// the server drops the connection before it has answered, and does not listen any more.
std::shared_ptr<Store> join_tcp_store(const TcpStoreOptions& options, FileDescriptor connection,
                                      Absence absence = Absence::not_yet);
// A store for the ranks of `comm`, which are on one host; it is served on a free port. Collective.
std::shared_ptr<Store> make_host_store(Communicator& comm, Stream& stream,
                                       std::chrono::milliseconds timeout);

// Returns the store through which the ranks of a job find each other. Rank 0 serves it on
// MASTER_PORT, or on the socket that the launcher passed (ZERORUN_STORE_FD). The other ranks
// connect to loopback if all ranks are on this host, else to MASTER_ADDR; in the latter case rank 0
// listens on all addresses of its host. Throws CommError if MASTER_ADDR cannot be reached.
std::shared_ptr<Store> rendezvous(const RankInfo& info, std::chrono::milliseconds timeout);

}  // namespace zerorun
