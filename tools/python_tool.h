#pragma once

#include <optional>
#include <string>
#include <vector>

namespace zerorun {

// The command of a tool that is written in Python (zerorun report, monitor, ckpt import, ckpt
// export): the Python that ranks would run, a module of the package, and the tool's arguments.
// Nothing for other words. Throws ConfigError where there is no Python.
std::optional<std::vector<std::string>> python_tool_command(
    const std::vector<std::string>& arguments);

// Becomes that command. Throws IoError when it cannot be executed.
[[noreturn]] void become(const std::vector<std::string>& command);

}  // namespace zerorun
