#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/environment.h"

namespace zerorun {

// The variables that go to other hosts with a job: those that DeepSpeed's launcher passes on
// (MLFLOW*, PYTHON*, MV2*, UCX*), those that steer NCCL, Gloo, OpenMP, PyTorch and zerorun, where
// programs are found, and `names` (--export). Of the first ones none that tells this process its
// own place, and nothing named like a password.
// On top come those of .deepspeed_env in HOME and in the working directory, the later one first;
// DS_ENV_FILE is another name for it. Throws ConfigError for a name that is not set, and for a
// malformed file.
Environment exported_variables(const Environment& environment,
                               const std::vector<std::string>& names);

// Lines NAME=VALUE, which may begin with "export"; blank lines, comments, and quotes around a value
// are as in a shell. Throws ConfigError with `name` and the line for others.
Environment parse_environment_file(std::string_view text, const std::string& name);

}  // namespace zerorun
