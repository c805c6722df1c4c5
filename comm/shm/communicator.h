#pragma once

#include <memory>

#include "comm/call_communicator.h"
#include "comm/group_options.h"

namespace zerorun {

// Makes a communicator for host memory of ranks on one host, over shared memory. Collective: ranks
// meet through options.store. Throws CommError if they cannot meet.
std::shared_ptr<CallCommunicator> make_shm_communicator(const GroupOptions& options);

}  // namespace zerorun
