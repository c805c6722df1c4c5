#include "launcher/options.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "config/command_line.h"
#include "core/check.h"
#include "core/parse_number.h"
#include "launcher/ranks/output.h"
#include "launcher/words.h"

namespace zerorun {

namespace {

// The values that an option may have, as torchrun and Kubernetes give them: PET_<name>.
constexpr auto kFromEnvironment = std::to_array<std::string_view>({
    "--nnodes",      "--nproc_per_node", "--node_rank",    "--master_addr",
    "--master_port", "--local_addr",     "--rdzv_backend", "--rdzv_endpoint",
    "--rdzv_id",     "--rdzv_conf",      "--max_restarts", "--role",
    "--log_dir",     "--redirects",      "--tee",          "--local_ranks_filter",
    "--standalone",  "--module",         "--no_python",
});

[[noreturn]] void fail_unknown(const CLI::App& app, const std::string& given) {
  const std::string name = with_underscores(given);
  const std::string_view advice = advice_on_foreign(name);
  if (!advice.empty()) fail<ConfigError>("option {} does not work here; {}", given, advice);
  if (given.starts_with("--localhost")) {
    fail<ConfigError>("unknown option {}; did you mean '--include {}'?", given, given.substr(2));
  }
  fail_unknown_option(app, name, "zerorun --help");
}

// Splits at PROGRAM, the first argument that is neither an option nor the value of one. The
// launcher's part comes back with underscores and with values joined by "=".
struct Split {
  std::vector<std::string> launcher;
  std::vector<std::string> program;
  bool no_hostfile = false;  // --hostfile "", which CLI11 would take for a missing value
};

Split split_arguments(const CLI::App& app, const std::vector<std::string>& arguments) {
  Split split;
  size_t i = 0;
  while (i < arguments.size() && arguments[i].size() > 1 && arguments[i].front() == '-') {
    const std::string& argument = arguments[i++];
    if (argument == "--") break;
    const bool is_long = argument.starts_with("--");
    const size_t name_end = is_long ? std::min(argument.find('='), argument.size()) : 2;
    const std::string name = with_underscores(argument.substr(0, name_end));
    const CLI::Option* option = app.get_option_no_throw(name);
    if (option == nullptr) fail_unknown(app, argument.substr(0, name_end));
    std::string value = argument.substr(name_end);
    if (value.starts_with('=')) value.erase(0, 1);
    if (option->get_items_expected_min() == 0) {
      if (name_end < argument.size()) fail<ConfigError>("option {} takes no value", name);
      split.launcher.push_back(name);
      continue;
    }
    if (name_end == argument.size()) {
      if (i == arguments.size()) fail<ConfigError>("option {} needs a value", name);
      value = arguments[i++];
    }
    const bool is_hostfile = name == "-H" || name == "--hostfile";
    if (is_hostfile) split.no_hostfile = value.empty();
    if (value.empty()) {
      if (is_hostfile) continue;
      // A script's --include "$FILTER" with nothing in FILTER.
      if (name == "-i" || name == "--include" || name == "-e" || name == "--exclude") continue;
      fail<ConfigError>("option {}: the value is empty; give one, or leave the option out", name);
    }
    split.launcher.push_back(fmt::format("--{}={}", option->get_lnames().front(), value));
  }
  split.program.assign(arguments.begin() + static_cast<ptrdiff_t>(i), arguments.end());
  return split;
}

// PET_NNODES=2 -> --nnodes=2, before the arguments, which take precedence.
std::vector<std::string> with_environment(const CLI::App& app, const Environment& environment) {
  std::vector<std::string> arguments;
  for (const std::string_view option : kFromEnvironment) {
    std::string name = "PET_";
    for (const char letter : option.substr(2)) {
      name += static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
    }
    const auto variable = environment.find(name);
    if (variable == environment.end() || variable->second.empty()) continue;
    const std::string& value = variable->second;
    if (app.get_option(std::string(option))->get_items_expected_min() > 0) {
      arguments.push_back(fmt::format("{}={}", option, value));
    } else if (value != "0" && value != "False" && value != "false") {
      arguments.emplace_back(option);
    }
  }
  return arguments;
}

// The words of a text as a shell takes them: blanks separate, quotes keep together.
std::vector<std::string> shell_words(const std::string& text) {
  std::vector<std::string> words;
  char quote = '\0';
  bool inside = false;
  for (const char letter : text) {
    if (quote != '\0' ? letter == quote : letter == '\'' || letter == '"') {
      quote = quote != '\0' ? '\0' : letter;
      if (!inside) words.emplace_back();
      inside = true;
    } else if (quote == '\0' && (letter == ' ' || letter == '\t')) {
      inside = false;
    } else {
      if (!inside) words.emplace_back();
      inside = true;
      words.back() += letter;
    }
  }
  if (quote != '\0') fail<ConfigError>("--launcher_args '{}': a quote is not closed", text);
  return words;
}

void read_rdzv_conf(const std::string& text, LaunchOptions& options) {
  for (const std::string_view part : split(text, ',')) {
    const size_t equals = part.find('=');
    const std::string_view key = trim(part.substr(0, equals));
    if (equals == std::string_view::npos || key.empty()) {
      fail<ConfigError>("--rdzv_conf '{}': expected KEY=VALUE,..., as in timeout=60", text);
    }
    if (key == "timeout" || key == "join_timeout") {
      const std::optional<int> seconds = parse_number(trim(part.substr(equals + 1)));
      if (!seconds || *seconds < 1) {
        fail<ConfigError>("--rdzv_conf '{}': expected a number of seconds for {}", text, key);
      }
      options.hosts.join_timeout_s = *seconds;
    } else {
      options.notes.push_back(
          fmt::format("--rdzv_conf {}: only timeout means something here", key));
    }
  }
}

void check_signals(const std::string& text) {
  for (const std::string_view name : split(text, ',')) {
    const std::string_view word = trim(name);
    if (word == "SIGTERM" || word == "SIGINT" || word == "SIGHUP" || word == "SIGQUIT") continue;
    fail<ConfigError>(
        "--signals_to_handle '{}': the launcher ends the job at SIGTERM, SIGINT, SIGHUP and "
        "SIGQUIT, and not at '{}'",
        text, word);
  }
}

std::vector<int> parse_rank_list(const std::string& text) {
  std::vector<int> ranks;
  for (const std::string_view part : split(text, ',')) {
    const std::optional<int> rank = parse_number(trim(part));
    if (!rank || *rank < 0) {
      fail<ConfigError>("--local_ranks_filter '{}': expected ranks, as in 0,2", text);
    }
    ranks.push_back(*rank);
  }
  return ranks;
}

// Derives what depends on several values.
void finish_options(const RawOptions& raw, LaunchOptions& options) {
  options.grace_period = std::chrono::milliseconds(static_cast<int64_t>(raw.grace_seconds * 1000));
  if (!raw.launcher_arguments.empty()) {
    options.remote.arguments = shell_words(raw.launcher_arguments);
  }
  if (!raw.rdzv_conf.empty()) read_rdzv_conf(raw.rdzv_conf, options);
  if (!raw.signals.empty()) check_signals(raw.signals);
  if (!raw.shown_ranks.empty()) options.output.shown_ranks = parse_rank_list(raw.shown_ranks);
  OutputRequest& output = options.output;
  if (!output.redirects.empty()) check_streams("--redirects", output.redirects);
  if (!output.tee.empty()) check_streams("--tee", output.tee);
  output.quiet =
      output.quiet || (raw.log_level != "" && raw.log_level != "debug" && raw.log_level != "info");
  constexpr int kDeepSpeedsRestarts = 100;
  if (raw.elastic && options.restarts.max_restarts == 0) {
    options.restarts.max_restarts = kDeepSpeedsRestarts;
  }
}

}  // namespace

LaunchOptions parse_options(const std::vector<std::string>& arguments,
                            const Environment& environment) {
  LaunchOptions options;
  RawOptions raw;
  CLI::App app;
  define_options(app, options, raw);
  Split parts = split_arguments(app, arguments);
  const Split defaults = split_arguments(app, with_environment(app, environment));
  parts.launcher.insert(parts.launcher.begin(), defaults.launcher.begin(), defaults.launcher.end());
  try {
    std::ranges::reverse(parts.launcher);  // CLI11 takes them from the back
    app.parse(parts.launcher);
  } catch (const CLI::ParseError& error) {
    fail<ConfigError>("{}", error.what());
  }
  if (parts.no_hostfile) options.hosts.hostfile = "";
  if (options.help || options.version) return options;
  finish_options(raw, options);
  if (parts.program.empty()) {
    fail<ConfigError>("no PROGRAM is given, as in: zerorun --num_gpus 2 train; see zerorun --help");
  }
  options.program.name = parts.program.front();
  options.program.arguments.assign(parts.program.begin() + 1, parts.program.end());
  return options;
}

std::string help_text(const std::string& tools) {
  LaunchOptions options;
  RawOptions raw;
  CLI::App app("", "zerorun");
  define_options(app, options, raw);
  app.get_option("PROGRAM")->required();  // as the usage line is to show it
  app.footer(tools + app.get_footer());
  return app.help();
}

}  // namespace zerorun
