#include "tools/help.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>

#include "core/check.h"
#include "core/printable.h"
#include "launcher/options.h"
#include "tools/commands.h"
#include "tools/plan/host_report.h"
#include "tools/terminal/tool.h"
#include "tools/tool_table.h"
#include "train/run/options.h"

namespace zerorun {

std::string list_commands() {
  ToolArguments values;
  CLI::App tools("", "zerorun");
  define_tools(tools, values);
  std::string text = "Commands (recognised only as the first word; each has its own --help):\n";
  std::string task;
  const auto add = [&text](const std::string& name, const CLI::App& tool) {
    text += fmt::format("    {:<24}{}\n", "zerorun " + name, tool.get_description());
  };
  for (const CLI::App* tool : tools_of(tools)) {
    if (tool->get_group() != task) text += fmt::format("  {}\n", task = tool->get_group());
    const std::vector<const CLI::App*> below = tools_of(*tool);
    if (below.empty()) add(tool->get_name(), *tool);
    for (const CLI::App* one : below) add(tool->get_name() + " " + one->get_name(), *one);
  }
  return text + "\n";
}

void print_help(const std::vector<std::string>& topic) {
  if (topic.empty()) {
    return print_text(list_commands() +
                      "Topics of zerorun help: these commands, launcher (its options), train, "
                      "environment (variables)");
  }
  const std::string& first = topic.front();
  if (first == "launcher") return print_text(help_text(list_commands()));
  if (first == "train") return print_text(train::parse_command_line({"--help"}).help);
  if (first == "environment") return print_text(environment_report());
  std::vector<std::string> command = topic;
  command.emplace_back("--help");
  if (!run_tool(command)) {
    fail<ConfigError>("zerorun help has no topic '{}'; zerorun help lists the topics",
                      printable(first));
  }
}

}  // namespace zerorun
