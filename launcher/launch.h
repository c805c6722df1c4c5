#pragma once

#include <string>
#include <vector>

#include "launcher/options.h"

namespace zerorun {

// Runs a job on this host or on several. `arguments`: the command line from which `options` were
// parsed. Forks (see run_guarded in launcher/ranks/guardian.h) and returns the job's exit code in
// both processes; the caller has to exit with it. Throws ConfigError and CommError.
int launch(const std::vector<std::string>& arguments, const LaunchOptions& options);

}  // namespace zerorun
