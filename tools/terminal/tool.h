#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace zerorun {

// The group of a tool in the help of the command above it, until it gets another.
inline constexpr const char* kNoTask = "Commands";

// Adds a tool, with its examples and what its exit codes mean, to those of `tools`.
CLI::App* add_tool(CLI::App& tools, const char* name, const char* about, const char* examples);

// The commands of an app, and the one of this name or null.
std::vector<const CLI::App*> tools_of(const CLI::App& app);
const CLI::App* find_tool(const CLI::App& app, const std::string& name);

// Prints with one line break at the end.
void print_text(const std::string& text);
// The same at once: the next line may take minutes.
void print_line(const std::string& line);

}  // namespace zerorun
