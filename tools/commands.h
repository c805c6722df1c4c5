#pragma once

#include <optional>
#include <string>
#include <vector>

namespace zerorun {

std::vector<std::string> command_names();

// The tools beside the launcher: zerorun config, ckpt, env, ... `arguments` without the
// launcher's own name. Returns the exit code, or nothing when the first word is not a tool's name.
// Throws ConfigError for arguments that cannot be meant, and what the tools themselves throw.
std::optional<int> run_tool(const std::vector<std::string>& arguments);

}  // namespace zerorun
