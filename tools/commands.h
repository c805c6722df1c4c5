#pragma once

#include <optional>
#include <string>
#include <vector>

namespace zerorun {

std::vector<std::string> command_names();

// Runs a tool: zerorun config, ckpt, env, ... `arguments` do not include the program's name.
// Returns the exit code, or nullopt if the first word is not the name of a tool. Throws ConfigError
// for invalid arguments, and the exceptions of the tools.
std::optional<int> run_tool(const std::vector<std::string>& arguments);

}  // namespace zerorun
