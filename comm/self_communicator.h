#pragma once

#include <memory>

#include "zerorun/communicator.h"

namespace zerorun {

// Makes the communicator of a job of one rank: an ordinary one, whose collectives copy.
std::shared_ptr<Communicator> make_self_communicator();

}  // namespace zerorun
