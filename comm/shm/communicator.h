#pragma once

#include <memory>

#include "comm/group_options.h"

namespace zerorun {

// Joins the group of the store: ranks of one host that share memory. Throws CommError when they
// cannot meet.
std::shared_ptr<Communicator> make_shm_communicator(const GroupOptions& options);

}  // namespace zerorun
