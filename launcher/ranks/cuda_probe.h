#pragma once

#include <string>

namespace zerorun {

// The reason why CUDA cannot be used; empty when it can. A child process asks, so that the launcher
// does not initialise the driver before it forks, and survives a driver that crashes.
std::string ask_for_cuda_problem();

}  // namespace zerorun
