#pragma once

#include <memory>

#include "comm/hierarchical/topology.h"
#include "zerorun/communicator.h"

namespace zerorun {

// Joins the job of the store: ranks of several hosts, as `topology` says. Throws CommError when
// they cannot meet, and DeviceError without Gloo.
std::shared_ptr<Communicator> make_hierarchical_communicator(const CommunicatorOptions& options,
                                                             Topology topology);

}  // namespace zerorun
