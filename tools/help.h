#pragma once

#include <string>
#include <vector>

namespace zerorun {

// Lists all commands, one per line, grouped by task.
std::string list_commands();

// Prints the help for a topic: a command of one or two words, launcher, train or environment;
// without a topic lists the commands. Throws ConfigError for other topics.
void print_help(const std::vector<std::string>& topic);

}  // namespace zerorun
