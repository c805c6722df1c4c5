#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
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

// Larger sizes are rejected.
inline constexpr double kMaxByteSize = 1e18;

// Parses a size: "80GB" is 80e9, "24GiB" and "24G" are 24 * 2^30; case does not matter. Throws
// ConfigError that names `option`, also if the unit is missing.
int64_t parse_bytes(const std::string& text, const std::string& option);

// Returns "1.5 GiB", or "-" for 0.
std::string text_of(int64_t nbytes);

// Shows the progress of some work in a line on a terminal once the work has taken two seconds.
// Prints nothing if `file` is not a terminal.
class ProgressBar {
 public:
  // `total` is the work in bytes; `after` is the time before the line is shown.
  ProgressBar(std::string what, uint64_t total, std::FILE* file = stderr,
              std::chrono::milliseconds after = std::chrono::seconds(2));
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void add(uint64_t nbytes);

 private:
  const std::string what_;
  const uint64_t total_;
  std::FILE* const file_;
  const bool is_terminal_;
  uint64_t done_ = 0;
  std::chrono::steady_clock::time_point next_;  // time of the next update
  bool is_drawn_ = false;
};

}  // namespace zerorun
