#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace zerorun {

// Initial group of a tool in the help of its parent command.
inline constexpr const char* kNoTask = "Commands";

// Adds a tool with its examples and the meaning of exit codes to `tools`.
CLI::App* add_tool(CLI::App& tools, const char* name, const char* about, const char* examples);

// Return the commands of an app, or the command with this name or nullptr.
std::vector<const CLI::App*> tools_of(const CLI::App& app);
const CLI::App* find_tool(const CLI::App& app, const std::string& name);

// Prints a text with one line break at the end. Control characters in names that it shows are
// escaped.
void print_text(const std::string& text);
// Prints a line and flushes, since the next line may take minutes.
void print_line(const std::string& line);

}  // namespace zerorun
