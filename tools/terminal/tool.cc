#include "tools/terminal/tool.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <utility>

#include "core/check.h"
#include "core/format_bytes.h"
#include "core/parse_number.h"
#include "core/printable.h"

namespace zerorun {

void print_text(const std::string& text) {
  const std::string shown = printable_lines(text);
  fmt::print("{}{}", shown, shown.ends_with('\n') || shown.empty() ? "" : "\n");
}

void print_line(const std::string& line) {
  print_text(line);
  std::fflush(stdout);
}

std::vector<const CLI::App*> tools_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

const CLI::App* find_tool(const CLI::App& app, const std::string& name) {
  for (const CLI::App* one : tools_of(app)) {
    if (one->get_name() == name) return one;
  }
  return nullptr;
}

CLI::App* add_tool(CLI::App& tools, const char* name, const char* about, const char* examples) {
  constexpr const char* kExitCodes =
      "Exit code: 0 on success, 2 for an invalid command line or configuration, 1 for other "
      "errors, such\n"
      "as a full disk or a damaged checkpoint.";
  CLI::App* tool = tools.add_subcommand(name, about);
  tool->group(kNoTask);
  tool->footer(fmt::format("{}{}{}", examples, *examples == '\0' ? "" : "\n\n", kExitCodes));
  return tool;
}

int64_t parse_bytes(const std::string& text, const std::string& option) {
  std::string_view rest = text;
  const std::optional<double> number = take_number<double>(rest);
  std::string unit(rest);
  std::ranges::transform(unit, unit.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  constexpr double kKibi = 1024;
  const double factor = unit == "GIB" || unit == "G"   ? kKibi * kKibi * kKibi
                        : unit == "GB"                 ? 1e9
                        : unit == "TIB" || unit == "T" ? kKibi * kKibi * kKibi * kKibi
                        : unit == "TB"                 ? 1e12
                        : unit == "MIB" || unit == "M" ? kKibi * kKibi
                        : unit == "MB"                 ? 1e6
                                                       : 0.0;
  const double nbytes = number.value_or(0) * factor;
  if (number && unit.empty()) {
    fail<ConfigError>("{} '{}' has no unit: expected a size such as {}GB or {}GiB", option, text,
                      text, text);
  }
  if (!(nbytes > 0) || nbytes > kMaxByteSize) {
    fail<ConfigError>("{} '{}': expected a size such as 80GB, 24GiB or 2TB", option, text);
  }
  return static_cast<int64_t>(nbytes);
}

std::string text_of(int64_t nbytes) {
  return nbytes == 0 ? "-" : format_bytes(static_cast<size_t>(nbytes));
}

ProgressBar::ProgressBar(std::string what, uint64_t total, std::FILE* file,
                         std::chrono::milliseconds after)
    : what_(std::move(what)),
      total_(std::max<uint64_t>(total, 1)),
      file_(file),
      is_terminal_(::isatty(::fileno(file)) == 1),
      next_(std::chrono::steady_clock::now() + after) {}

ProgressBar::~ProgressBar() {
  if (!is_drawn_) return;
  std::fputs("\r\033[K", file_);
  std::fflush(file_);
}

void ProgressBar::add(uint64_t nbytes) {
  constexpr int kWidth = 30;
  constexpr std::chrono::milliseconds kEvery{100};
  done_ = std::min(done_ + nbytes, total_);
  const auto now = std::chrono::steady_clock::now();
  if (!is_terminal_ || now < next_) return;
  next_ = now + kEvery;
  is_drawn_ = true;
  const double part = static_cast<double>(done_) / static_cast<double>(total_);
  const auto filled = static_cast<size_t>(part * kWidth);
  fmt::print(file_, "\r{} [{:<{}}] {:3.0f} % of {}\033[K", what_, std::string(filled, '#'), kWidth,
             100 * part, format_bytes(total_));
  std::fflush(file_);
}

}  // namespace zerorun
