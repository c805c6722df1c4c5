
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <span>

#include "config/command_line.h"
#include "core/check.h"
#include "launcher/options.h"
#include "launcher/program.h"
#include "tools/commands.h"
#include "tools/terminal/tool.h"
#include "train/run/options.h"

namespace zerorun {

namespace {

// The words up to the cursor are taken from the line, because bash also splits at '=' and ':'. bash
// replaces only the part after the last of these.
constexpr std::string_view kBash = R"(_zerorun() {
  local line=${COMP_LINE:0:COMP_POINT} cut candidate words
  read -ra words <<<"$line"
  [[ $line != *[[:space:]] ]] || words+=('')
  cut=${words[-1]%"${words[-1]##*[=:]}"}
  COMPREPLY=()
  while IFS=$'\t' read -r candidate _; do
    COMPREPLY+=("${candidate#"$cut"}")
  done < <("$1" completion --words "${words[@]:1}" 2>/dev/null)
}
complete -o bashdefault -o default -F _zerorun zerorun
)";

constexpr std::string_view kZsh = R"(#compdef zerorun
_zerorun() {
  local line
  local -a candidates shown
  for line in "${(@f)$("${words[1]}" completion --words "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    [[ -n $line ]] || continue
    candidates+=("${line%%$'\t'*}")
    shown+=("${line//$'\t'/  }")
  done
  if (( ${#candidates} )); then
    compadd -l -d shown -a candidates
  else
    _files
  fi
}
if [[ ${funcstack[1]} == _zerorun ]]; then
  _zerorun "$@"
else
  compdef _zerorun zerorun
fi
)";

constexpr std::string_view kFish = R"(function __zerorun_candidates
    set -l words (commandline -opc) (commandline -ct)
    set -l found ($words[1] completion --words $words[2..-1] 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c zerorun -f -a '(__zerorun_candidates)'
)";

using Words = std::span<const std::string>;
using Candidates = std::vector<Candidate>;

const CLI::Option* find_option(const CLI::App& app, const std::string& word) {
  if (word.size() < 2 || word.front() != '-') return nullptr;
  return app.get_option_no_throw(with_underscores(word.substr(0, word.find('='))));
}

// True if the word is an option whose value is the next word.
bool expects_value(const CLI::App& app, const std::string& word) {
  const CLI::Option* option = find_option(app, word);
  return option != nullptr && option->get_items_expected_min() > 0 &&
         word.find('=') == std::string::npos;
}

void add_values(const CLI::Option& option, const std::string& lead, const std::string& prefix,
                Candidates& found) {
  for (const std::string& choice : choices_of(option)) {
    if (choice.starts_with(prefix)) found.push_back({lead + choice, {}});
  }
}

void add_options(const CLI::App& app, const std::string& prefix, Candidates& found) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden from the help, too
    for (const std::string& name : option->get_lnames()) {
      const std::string word = "--" + name;
      if (word.starts_with(prefix)) found.push_back({word, option->get_description()});
    }
  }
}

// Completes the last word as an option of `app` or as the value of one.
Candidates complete_option(const CLI::App& app, Words words) {
  Candidates found;
  const std::string& last = words.back();
  const size_t equals = last.find('=');
  if (const CLI::Option* option = find_option(app, last);
      option != nullptr && equals != std::string::npos) {
    add_values(*option, last.substr(0, equals + 1), last.substr(equals + 1), found);
  } else if (words.size() > 1 && expects_value(app, words[words.size() - 2])) {
    add_values(*find_option(app, words[words.size() - 2]), "", last, found);
  } else if (last.starts_with('-')) {
    add_options(app, last == "-" ? "--" : with_underscores(last), found);
  } else {  // choices of positional arguments, such as the shell of `completion`
    for (const CLI::Option* argument : app.get_options()) {
      if (!argument->nonpositional()) add_values(*argument, "", last, found);
    }
  }
  return found;
}

void add_tools(const CLI::App& app, const std::string& prefix, Candidates& found) {
  for (const CLI::App* tool : tools_of(app)) {
    if (tool->get_name().starts_with(prefix)) {
      found.push_back({tool->get_name(), tool->get_description()});
    }
  }
}

Candidates complete_tool(const CLI::App& tools, Words words) {
  const CLI::App* app = &tools;
  while (words.size() > 1) {
    const CLI::App* below = find_tool(*app, words.front());
    if (below == nullptr) break;
    app = below;
    words = words.subspan(1);
  }
  if (tools_of(*app).empty() || words.back().starts_with('-')) return complete_option(*app, words);
  Candidates found;
  if (words.size() == 1) add_tools(*app, words.back(), found);
  return found;
}

// Returns the index of PROGRAM, or of the last word.
size_t find_program_word(const CLI::App& launcher, Words words) {
  size_t i = 0;
  while (i + 1 < words.size() && words[i].starts_with('-')) {
    i += expects_value(launcher, words[i]) ? 2 : 1;
  }
  return std::min(i, words.size() - 1);
}

Candidates complete_job(const CLI::App& tools, Words words) {
  LaunchOptions options;
  RawOptions raw;
  CLI::App launcher;
  define_options(launcher, options, raw);
  const size_t program = find_program_word(launcher, words);
  if (program + 1 < words.size()) {
    if (words[program] != "train") return {};
    train::TrainOptions values;
    CLI::App train;
    train::define_options(train, values);
    return complete_option(train, words.subspan(program + 1));
  }
  const std::string& last = words.back();
  const bool is_value = program > 0 && expects_value(launcher, words[program - 1]);
  if (is_value || last.starts_with('-')) return complete_option(launcher, words);
  Candidates found;
  if (words.size() == 1) add_tools(tools, last, found);
  for (const std::string& name : bundled_programs(ProgramSearch::here().launcher_directory)) {
    if (name.starts_with(last)) found.push_back({name, "A bundled program"});
  }
  return found;
}

}  // namespace

Candidates complete(std::vector<std::string> words) {
  if (words.empty()) words.emplace_back();
  ToolArguments values;
  CLI::App tools("", "zerorun");
  define_tools(tools, values);
  const Words all(words);
  if (words.size() == 1 || find_tool(tools, words.front()) == nullptr) {
    return complete_job(tools, all);
  }
  if (words.front() != "help") return complete_tool(tools, all);
  Candidates found = complete_tool(tools, all.subspan(1));
  for (const char* topic : {"launcher", "train", "environment"}) {
    if (words.size() == 2 && std::string_view(topic).starts_with(words.back())) {
      found.push_back({topic, {}});
    }
  }
  return found;
}

std::string candidates_text(const std::vector<std::string>& words) {
  std::string text;
  for (const Candidate& candidate : complete(words)) {
    fmt::format_to(std::back_inserter(text), "{}\t{}\n", candidate.word, candidate.about);
  }
  return text;
}

std::string completion_script(const std::string& shell) {
  if (shell == "bash") return std::string(kBash);
  if (shell == "zsh") return std::string(kZsh);
  ZR_CHECK(shell == "fish", "no script for the shell '{}'", shell);
  return std::string(kFish);
}

}  // namespace zerorun
