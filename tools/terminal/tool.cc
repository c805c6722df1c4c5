#include "tools/terminal/tool.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>

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

}  // namespace zerorun
