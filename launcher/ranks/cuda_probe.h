#pragma once

#include <string>

namespace zerorun {

// Returns why CUDA cannot be used; empty if it can. A child process checks it, so that the launcher
// does not initialise the driver before it forks, and survives a driver that crashes.
std::string ask_for_cuda_problem();

}  // namespace zerorun
