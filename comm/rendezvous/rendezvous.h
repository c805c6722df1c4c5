#pragma once

#include <chrono>
#include <memory>

#include "zerorun/communicator.h"

namespace zerorun {

// The store through which the ranks of a job find each other: rank 0 serves it on MASTER_PORT, if
// the launcher gave it a socket (ZERORUN_STORE_FD) on that one, and the others connect: to the
// loopback when all ranks are on this host, else to MASTER_ADDR, and rank 0 serves all of its
// host's addresses. Throws CommError when MASTER_ADDR leads nowhere.
std::shared_ptr<Store> rendezvous(const RankInfo& info, std::chrono::milliseconds timeout);

}  // namespace zerorun
