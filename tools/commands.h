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

// Lists all commands, one per line, grouped by task.
std::string list_commands();

// Prints the help for a topic: a command of one or two words, launcher, train or environment;
// without a topic lists the commands. Throws ConfigError for other topics.
void print_help(const std::vector<std::string>& topic);

}  // namespace zerorun
