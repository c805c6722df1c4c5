#pragma once

#include <string>
#include <vector>

namespace zerorun {

// Every command in a line, grouped by task.
std::string list_commands();

// Prints what there is to say about a topic: a command in one or two words, launcher, train or
// environment; without one the list. Throws ConfigError for other words.
void print_help(const std::vector<std::string>& topic);

}  // namespace zerorun
