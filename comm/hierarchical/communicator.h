#pragma once

#include <memory>

#include "comm/call_communicator.h"
#include "comm/group_options.h"
#include "comm/hierarchical/topology.h"

namespace zerorun {

// Makes a communicator for host memory of ranks on several hosts. Collective: ranks meet through
// options.store. Throws CommError if they cannot meet, and DeviceError if libzerorun_gloo.so cannot
// be opened.
std::shared_ptr<CallCommunicator> make_hierarchical_communicator(const GroupOptions& options,
                                                                 Topology topology);

}  // namespace zerorun
