#pragma once

#include <memory>

#include "comm/group_options.h"

namespace zerorun {

// Makes a communicator of one rank, whose collectives copy their inputs.
std::shared_ptr<Communicator> make_self_communicator(const GroupOptions& options);

}  // namespace zerorun
