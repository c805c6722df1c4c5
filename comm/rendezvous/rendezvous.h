#pragma once

#include <chrono>
#include <memory>

#include "zerorun/communicator.h"

namespace zerorun {

// Returns the store through which the ranks of a job find each other. Rank 0 serves it on
// MASTER_PORT, or on the socket that the launcher passed (ZERORUN_STORE_FD). The other ranks
// connect to loopback if all ranks are on this host, else to MASTER_ADDR; in the latter case rank 0
// listens on all addresses of its host. Throws CommError if MASTER_ADDR cannot be reached.
std::shared_ptr<Store> rendezvous(const RankInfo& info, std::chrono::milliseconds timeout);

}  // namespace zerorun
