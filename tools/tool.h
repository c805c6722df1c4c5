#pragma once

#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace zerorun {

// Adds a tool, with its examples and what its exit codes mean, to those of `tools`.
CLI::App* add_tool(CLI::App& tools, const char* name, const char* about, const char* examples);

// Prints with one line break at the end.
void print_text(const std::string& text);
// The same at once: the next line may take minutes.
void print_line(const std::string& line);

}  // namespace zerorun
