#pragma once

#include <string>

namespace zerorun {

// Returns the text of `zerorun env`: this build, this machine as a job would use it, and the
// environment variables that zerorun reads. The text is meant for bug reports and does not contain
// the job secret.
std::string host_report();

// Returns a list of the environment variables that zerorun reads, with meaning and current value.
std::string environment_report();

}  // namespace zerorun
