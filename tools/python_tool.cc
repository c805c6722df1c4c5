#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>

#include "config/command_line.h"
#include "core/check.h"
#include "launcher/environment.h"
#include "launcher/program.h"
#include "launcher/ranks/process.h"
#include "tools/commands.h"
#include "tools/terminal/tool.h"

namespace zerorun {

namespace {

// An option of a Python tool, for completion; the tool itself parses it. `value` is empty for a
// flag, and has the choices, separated by |, where there are some.
struct PythonOption {
  const char* name;
  std::string_view value;
  const char* about;
};

constexpr std::string_view kDTypeNames = "fp32|bf16|fp16";
constexpr const char* kTagMeaning = "Tag of the checkpoint. Default: the last one saved";

constexpr auto kReport = std::to_array<PythonOption>(
    {{"--output", "FILE", "File for the page"},
     {"--trace", "FILE", "Timeline of the run"},
     {"--serve", "", "Serve a page that follows the runs instead of writing one"},
     {"--port", "PORT", "Port for --serve"}});
constexpr auto kMonitor = std::to_array<PythonOption>(
    {{"--tensorboard", "DIR", "Write event files for TensorBoard to this folder"},
     {"--csv", "DIR", "Write a CSV file for each scalar to this folder"},
     {"--wandb", "PROJECT", "Report to a run of this project of Weights & Biases"},
     {"--comet", "PROJECT", "Report to an experiment of this project of Comet"},
     {"--follow", "", "Follow the file until the run has ended"},
     {"--quiet", "SECONDS", "With --follow: stop if the file has not grown for this time"}});
constexpr auto kTop =
    std::to_array<PythonOption>({{"--interval", "SECONDS", "Time between two updates"}});
constexpr auto kTune = std::to_array<PythonOption>(
    {{"--model", "MODEL", "The model, as for zerorun plan"},
     {"--gpu_memory", "SIZE", "Memory of each GPU, as for zerorun plan"},
     {"--host_memory", "SIZE", "Memory of each host, as for zerorun plan"},
     {"--trial_seconds", "N", "End a trial after this time"},
     {"--run", "", "Train with the best configuration afterwards"}});
constexpr auto kImport = std::to_array<PythonOption>(
    {{"--dtype", kDTypeNames, "dtype of the parameters"},
     {"--offload", "DIR", "Folder on a local disk to keep states in, to save memory"},
     {"--tensor", "NAME=KIND",
      "What a tensor without optimizer states is: buffer, frozen, or the name it is tied to"},
     {"--tag", "TAG", kTagMeaning}});
constexpr auto kExport =
    std::to_array<PythonOption>({{"--to", "safetensors|bin|dcp", "File format of the model"},
                                 {"--dtype", kDTypeNames, "dtype of the parameters"},
                                 {"--max_shard_size", "SIZE", "Maximum size of a file"},
                                 {"--tag", "TAG", kTagMeaning}});

// A tool that is written in Python: its command words, and the module that runs it.
struct PythonTool {
  std::string_view words;
  const char* module;
  const char* about;
  std::span<const PythonOption> options;
  bool keeps_words = false;     // the module also parses the command words
  bool starts_zerorun = false;  // it needs the path of this command
};

constexpr auto kPythonTools = std::to_array<PythonTool>({
    {"report", "zerorun.report", "Writes an HTML page about runs; --serve follows them", kReport},
    {"monitor", "zerorun.monitor",
     "Passes a metrics file on to TensorBoard, CSV files, wandb or Comet", kMonitor},
    {"top", "zerorun.top", "Shows the last step of each rank in the terminal, live", kTop},
    {"tune", "zerorun.tune", "Finds the fastest configuration with short trial runs", kTune, false,
     true},
    {"explain", "zerorun.explain", "Says what causes an error, and what helps", {}},
    {"ckpt import", "zerorun", "Converts files of DeepSpeed, FSDP2 or Hugging Face to a checkpoint",
     kImport, true},
    {"ckpt export", "zerorun", "Exports the model of a checkpoint for Hugging Face or FSDP2",
     kExport, true},
});

// True if DeepSpeed's `--autotuning tune|run` is among the launcher's options before the script.
bool asks_for_tuning(const std::vector<std::string>& arguments) {
  const auto script = std::ranges::find_if(
      arguments, [](const std::string& word) { return word.ends_with(".py"); });
  return script != arguments.end() &&
         std::any_of(arguments.begin(), script, [](const std::string& word) {
           return word == "--autotuning" || word.starts_with("--autotuning=");
         });
}

// Selects a Python that has the package: the one that ranks would run, the active environment with
// this zerorun's package, or the Python that this zerorun is for. Throws ConfigError if there is
// none.
void choose_python(PythonCommand& command, std::string_view tool, const ProgramSearch& search) {
  std::string& python = command.words.front();
  if (has_package(python, "zerorun", command.environment)) return;
  const std::optional<OwnPackage> own = find_own_package(search.launcher_directory);
  if (!own || ::access(own->python.c_str(), X_OK) != 0) {
    fail<ConfigError>(
        "zerorun {} is written in Python, but {} does not have the package zerorun{}; activate an "
        "environment that has it, or run `pip install .` in zerorun's sources for this one",
        tool, python, own ? fmt::format(", nor is there {}", own->python.string()) : "");
  }
  // Environments of one installation differ in their packages only, and the active one may have
  // PyTorch.
  std::error_code error;
  const bool fits =
      !search.virtual_env.empty() && std::filesystem::equivalent(python, own->python, error);
  if (!fits) python = own->python.string();
  std::string& path = command.environment["PYTHONPATH"];
  path = own->folder.string() + (path.empty() ? "" : ":" + path);
}

PythonCommand module_command(const PythonTool& tool, const ProgramSearch& search,
                             const Environment& environment) {
  PythonCommand command = {find_program({.name = tool.module, .module = true}, search).command,
                           environment};
  choose_python(command, tool.words, search);
  if (tool.starts_zerorun) {
    command.words.push_back("--command=" + (search.launcher_directory / "zerorun").string());
  }
  return command;
}

}  // namespace

void define_python_tools(CLI::App& tools) {
  for (const PythonTool& tool : kPythonTools) {
    const std::vector<std::string> words = CLI::detail::split(std::string(tool.words), ' ');
    CLI::App* const parent = words.size() == 1 ? &tools : tools.get_subcommand(words.front());
    CLI::App* app = add_tool(*parent, words.back().c_str(), tool.about, "");
    for (const auto& [name, value, about] : tool.options) {
      const std::string word(value);
      if (word.empty()) {
        app->add_flag(name, about);
      } else if (word.find('|') == std::string::npos) {
        takes_text(app->add_option(name, about), word);
      } else {
        takes_one_of(app->add_option(name, about), CLI::detail::split(word, '|'));
      }
    }
  }
}

std::optional<PythonCommand> python_tool_command(const std::vector<std::string>& arguments,
                                                 const ProgramSearch& search,
                                                 const Environment& environment) {
  const bool tunes = asks_for_tuning(arguments);
  for (const PythonTool& tool : kPythonTools) {
    const std::vector<std::string> words = CLI::detail::split(std::string(tool.words), ' ');
    const bool is_named = std::ranges::mismatch(words, arguments).in1 == words.end();
    if (tunes ? tool.words != "tune" : !is_named) continue;
    PythonCommand command = module_command(tool, search, environment);
    const size_t skipped = tunes || tool.keeps_words ? 0 : words.size();
    command.words.insert(command.words.end(), arguments.begin() + static_cast<ptrdiff_t>(skipped),
                         arguments.end());
    return command;
  }
  return std::nullopt;
}

void become(const PythonCommand& command) {
  const std::vector<std::string> variables = environment_block(command.environment);
  ::execve(command.words.front().c_str(), exec_pointers(command.words).data(),
           exec_pointers(variables).data());
  fail<IoError>("cannot execute {}: {}", command.words.front(), std::strerror(errno));
}

}  // namespace zerorun
