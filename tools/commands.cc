#include "tools/commands.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>

#include "config/checks/suggest.h"
#include "config/command_line.h"
#include "core/check.h"
#include "core/printable.h"
#include "launcher/options.h"
#include "tools/completion.h"
#include "tools/host.h"
#include "tools/python_tool.h"
#include "tools/terminal/tool.h"
#include "tools/tool_table.h"
#include "train/run/options.h"

namespace zerorun {

namespace {

std::vector<std::string> names_of(const CLI::App& tool) {
  std::vector<std::string> names;
  for (const CLI::App* one : tools_of(tool)) names.push_back(one->get_name());
  return names;
}

// Throws ConfigError that names the tool of the wrong argument and a suggestion, which CLI11's
// message lacks.
[[noreturn]] void fail_parsing(const CLI::App& tools, const std::vector<std::string>& arguments,
                               const CLI::ParseError& error) {
  const CLI::App* tool = &tools;
  std::string command = "zerorun";
  auto argument = arguments.begin();
  for (; argument != arguments.end(); ++argument) {
    const CLI::App* below = find_tool(*tool, *argument);
    if (below == nullptr) break;
    tool = below;
    command += " " + tool->get_name();
  }
  const std::vector<std::string> names = names_of(*tool);
  if (!names.empty() && argument == arguments.end()) {
    fail<ConfigError>("{} needs a command: {}; see {} --help", command, fmt::join(names, ", "),
                      command);
  }
  if (!names.empty() && !argument->starts_with('-')) {
    const std::string nearest = nearest_name(*argument, names);
    fail<ConfigError>("{} has no command '{}'; {}", command, printable(*argument),
                      nearest.empty() ? fmt::format("it has {}", fmt::join(names, ", "))
                                      : fmt::format("did you mean '{}'?", nearest));
  }
  for (; argument != arguments.end() && *argument != "--"; ++argument) {
    const std::string name = argument->substr(0, argument->find('='));
    if (name.size() > 1 && name.front() == '-' && tool->get_option_no_throw(name) == nullptr) {
      fail_unknown_option(*tool, name, command + " --help");
    }
  }
  fail<ConfigError>("{}: {}; see {} --help", command, error.what(), command);
}

}  // namespace

std::vector<std::string> command_names() {
  ToolArguments values;
  CLI::App tools("", "zerorun");
  define_tools(tools, values);
  return names_of(tools);
}

std::optional<int> run_tool(const std::vector<std::string>& given) {
  const std::string first = given.empty() ? "" : given[0];
  const std::string second = given.size() < 2 ? "" : given[1];
  if (first == "help" && !second.starts_with('-')) {
    print_help({given.begin() + 1, given.end()});
    return 0;
  }
  if (first == "completion" && second == "--words") {  // request of the completion scripts
    print_text(candidates_text({given.begin() + 2, given.end()}));
    return 0;
  }
  if (const auto command =
          python_tool_command(given, ProgramSearch::here(), inherited_environment())) {
    become(*command);
  }
  ToolArguments values;
  CLI::App tools("", "zerorun");
  define_tools(tools, values);
  if (given.empty() || find_tool(tools, given.front()) == nullptr) return std::nullopt;
  std::vector<std::string> arguments;
  std::transform(given.begin(), given.end(), std::back_inserter(arguments), with_underscores);
  try {
    tools.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    print_text(tools.help());
  } catch (const CLI::ParseError& error) {
    fail_parsing(tools, arguments, error);
  }
  return 0;
}

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
