#pragma once

#include <string>

namespace zerorun {

// The text of `zerorun env`: this build, this machine as a job would use it, and the environment
// variables that zerorun reads. For bug reports, so the job secret is not in it.
std::string host_report();

// The environment variables that zerorun reads, what they mean, and what they are here.
std::string environment_report();

}  // namespace zerorun
