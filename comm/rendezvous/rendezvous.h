#pragma once

#include <chrono>
#include <memory>

#include "zerorun/communicator.h"

namespace zerorun {

// The store through which the ranks of a job find each other: rank 0 serves it on MASTER_PORT, if
// the launcher gave it a socket (ZERORUN_STORE_FD) on that one, and the others connect. Throws
// CommError when ranks run on several hosts.
std::shared_ptr<Store> rendezvous(const RankInfo& info, std::chrono::milliseconds timeout);

}  // namespace zerorun
