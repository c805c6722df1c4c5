#pragma once

#include <memory>

#include "comm/call_communicator.h"
#include "comm/group_options.h"

namespace zerorun {

// Makes a communicator of one rank, whose collectives copy their inputs.
std::shared_ptr<CallCommunicator> make_self_communicator(const GroupOptions& options);

}  // namespace zerorun
