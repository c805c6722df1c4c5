#pragma once

#include <memory>

#include "zerorun/communicator.h"

namespace zerorun {

// Joins the job of the store: ranks of one host that share memory. Throws CommError when they
// cannot meet.
std::shared_ptr<Communicator> make_shm_communicator(const CommunicatorOptions& options);

}  // namespace zerorun
