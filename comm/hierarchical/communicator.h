#pragma once

#include <memory>

#include "comm/group_options.h"
#include "comm/hierarchical/topology.h"

namespace zerorun {

// Joins the group of the store: ranks of several hosts, as `topology` says. Throws CommError when
// they cannot meet, and DeviceError without Gloo.
std::shared_ptr<Communicator> make_hierarchical_communicator(const GroupOptions& options,
                                                             Topology topology);

}  // namespace zerorun
