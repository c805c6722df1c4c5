#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/env.h"

namespace zerorun {

// Environment variables by name.
using Environment = std::map<std::string, std::string>;

// The value of a variable, which may be empty; nullopt if it is not set. The name has to be in the
// table of config/env.h.
std::optional<std::string> find_variable(const Environment& environment, const std::string& name);
// The variables as execve takes them: "NAME=value".
std::vector<std::string> environment_block(const Environment& environment);

// Returns 32 random bytes in hexadecimal.
std::string make_secret();

// The variables that are passed to other hosts: those that DeepSpeed's launcher passes (MLFLOW*,
// PYTHON*, MV2*, UCX*); those for NCCL, Gloo, OpenMP, PyTorch and zerorun; paths of programs; and
// `names` (--export). Without --export, variables that describe this process's own place in a job,
// or whose name suggests a password, are not passed.
//
// Variables in .deepspeed_env in HOME and in the working directory override these, the latter
// first; DS_ENV_FILE is another name for the file. Throws ConfigError for a name that is not set,
// and for a malformed file.
Environment exported_variables(const Environment& environment,
                               const std::vector<std::string>& names);

// Parses lines NAME=VALUE, which may begin with "export". Blank lines, comments, and quotes around
// a value are as in a shell. Throws ConfigError that names `name` and the line for other text.
Environment parse_environment_file(std::string_view text, const std::string& name);

}  // namespace zerorun
