#pragma once

#include <string>

namespace zerorun {

// What `zerorun env` prints: this build, this machine as a job would use it, and every environment
// variable that zerorun reads. For bug reports, so the job secret is not in it.
std::string host_report();

}  // namespace zerorun
