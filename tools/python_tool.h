#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/environment.h"
#include "launcher/program.h"

namespace CLI {
class App;
}  // namespace CLI

namespace zerorun {

// Defines names and options of the tools that are written in Python (report, monitor, top, tune,
// ckpt import and export), for help and completion. python_tool_command runs them. `ckpt` must
// already be defined.
void define_python_tools(CLI::App& tools);

// The command that runs such a tool: a Python interpreter, a module of the package, and the tool's
// arguments.
struct PythonCommand {
  std::vector<std::string> words;
  Environment environment;
};

// Returns the command for such a tool, or for `--autotuning` before a script, which means `zerorun
// tune`; nullopt for other arguments. The interpreter is that of the ranks if it has the package,
// else the one with which zerorun is installed or for which it was built. Throws ConfigError if
// neither has it.
std::optional<PythonCommand> python_tool_command(const std::vector<std::string>& arguments,
                                                 const ProgramSearch& search,
                                                 const Environment& environment);

// Replaces this process by the command. Throws IoError if it cannot be executed.
[[noreturn]] void become(const PythonCommand& command);

}  // namespace zerorun
