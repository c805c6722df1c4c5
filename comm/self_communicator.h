#pragma once

#include <memory>

#include "zerorun/communicator.h"

namespace zerorun {

// A job of one rank: an ordinary communicator, whose collectives copy.
std::shared_ptr<Communicator> make_self_communicator();

}  // namespace zerorun
