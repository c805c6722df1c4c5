#pragma once

#include <string>
#include <vector>

#include "launcher/options.h"

namespace zerorun {

// Runs the job that `options` ask for, on this host or on several; `arguments` are what they were
// parsed from. Returns the job's exit code, in the launcher's guardian as in the process that it
// forks: the caller ends with it. Throws ConfigError and CommError.
int launch(const std::vector<std::string>& arguments, const LaunchOptions& options);

}  // namespace zerorun
