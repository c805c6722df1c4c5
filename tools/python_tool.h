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

// Adds the tools that are written in Python (report, monitor, top, tune, ckpt import and export) by
// name and options, for the help and for completion: python_tool_command runs them. `ckpt` has to
// be there.
void define_python_tools(CLI::App& tools);

// The command of such a tool, or of `--autotuning` before a script, which is `zerorun tune`: a
// Python, a module of the package, and the tool's arguments.
struct PythonCommand {
  std::vector<std::string> words;
  Environment environment;
};

// Nothing for other words. The Python is the one that ranks would run where that has the package,
// else the one that this zerorun is installed beside or was built for. Throws ConfigError where
// neither is there.
std::optional<PythonCommand> python_tool_command(const std::vector<std::string>& arguments,
                                                 const ProgramSearch& search,
                                                 const Environment& environment);

// Becomes that command. Throws IoError when it cannot be executed.
[[noreturn]] void become(const PythonCommand& command);

}  // namespace zerorun
