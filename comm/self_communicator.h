#pragma once

#include <memory>

#include "comm/group_options.h"

namespace zerorun {

// Makes the communicator of a group of one rank: an ordinary one, whose collectives copy.
std::shared_ptr<Communicator> make_self_communicator(const GroupOptions& options);

}  // namespace zerorun
