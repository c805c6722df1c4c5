#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "config/command_line.h"
#include "core/check.h"
#include "launcher/program.h"
#include "tools/commands.h"
#include "tools/terminal/tool.h"

namespace zerorun {

namespace {

// An option of a Python tool, for completion; the tool itself parses it. `value` is empty for a
// flag.
struct PythonOption {
  const char* name;
  const char* value;
  const char* about;
  std::vector<std::string> choices{};
};

// A tool that is written in Python: its command words, and the module that runs it.
struct PythonTool {
  std::vector<std::string> words;
  std::string module;
  const char* about;
  std::vector<PythonOption> options;
  bool keeps_words = false;     // the module also parses the command words
  bool starts_zerorun = false;  // it needs the path of this command
};

std::vector<PythonOption> report_options() {
  return {{"--output", "FILE", "File for the page"},
          {"--trace", "FILE", "Timeline of the run"},
          {"--serve", "", "Serve a page that follows the runs instead of writing one"},
          {"--port", "PORT", "Port for --serve"}};
}

std::vector<PythonOption> monitor_options() {
  return {{"--tensorboard", "DIR", "Write event files for TensorBoard to this folder"},
          {"--csv", "DIR", "Write a CSV file for each scalar to this folder"},
          {"--wandb", "PROJECT", "Report to a run of this project of Weights & Biases"},
          {"--comet", "PROJECT", "Report to an experiment of this project of Comet"},
          {"--follow", "", "Follow the file until the run has ended"},
          {"--quiet", "SECONDS", "With --follow: stop if the file has not grown for this time"}};
}

std::vector<PythonOption> tune_options() {
  return {{"--model", "MODEL", "The model, as for zerorun plan"},
          {"--gpu_memory", "SIZE", "Memory of each GPU, as for zerorun plan"},
          {"--host_memory", "SIZE", "Memory of each host, as for zerorun plan"},
          {"--trial_seconds", "N", "End a trial after this time"},
          {"--run", "", "Train with the best configuration afterwards"}};
}

const std::vector<std::string>& dtypes() {
  static const std::vector<std::string> names = {"fp32", "bf16", "fp16"};
  return names;
}

std::vector<PythonOption> import_options() {
  return {{"--dtype", "DTYPE", "dtype of the parameters", dtypes()},
          {"--offload", "DIR", "Folder on a local disk to keep states in, to save memory"},
          {"--tensor", "NAME=KIND",
           "What a tensor without optimizer states is: buffer, frozen, or the name it is tied to"},
          {"--tag", "TAG", "Tag of the checkpoint. Default: the last one saved"}};
}

std::vector<PythonOption> export_options() {
  return {{"--to", "FORMAT", "File format of the model", {"safetensors", "bin", "dcp"}},
          {"--dtype", "DTYPE", "dtype of the parameters", dtypes()},
          {"--max_shard_size", "SIZE", "Maximum size of a file"},
          {"--tag", "TAG", "Tag of the checkpoint. Default: the last one saved"}};
}

const std::vector<PythonTool>& python_tools() {
  static const std::vector<PythonTool> tools = {
      {{"report"},
       "zerorun.report",
       "Writes an HTML page about runs; --serve follows them",
       report_options()},
      {{"monitor"},
       "zerorun.monitor",
       "Passes a metrics file on to TensorBoard, CSV files, wandb or Comet",
       monitor_options()},
      {{"top"},
       "zerorun.top",
       "Shows the last step of each rank in the terminal, live",
       {{"--interval", "SECONDS", "Time between two updates"}}},
      {{"tune"},
       "zerorun.tune",
       "Finds the fastest configuration with short trial runs",
       tune_options(),
       false,
       true},
      {{"explain"}, "zerorun.explain", "Says what causes an error, and what helps", {}},
      {{"ckpt", "import"},
       "zerorun",
       "Converts files of DeepSpeed, FSDP2 or Hugging Face to a checkpoint",
       import_options(),
       true},
      {{"ckpt", "export"},
       "zerorun",
       "Exports the model of a checkpoint for Hugging Face or FSDP2",
       export_options(),
       true},
  };
  return tools;
}

// True if DeepSpeed's `--autotuning tune|run` is among the launcher's options before the script.
bool asks_for_tuning(const std::vector<std::string>& arguments) {
  const auto script = std::find_if(arguments.begin(), arguments.end(),
                                   [](const std::string& word) { return word.ends_with(".py"); });
  return script != arguments.end() &&
         std::any_of(arguments.begin(), script, [](const std::string& word) {
           return word == "--autotuning" || word.starts_with("--autotuning=");
         });
}

// Selects a Python that has the package: the one that ranks would run, the active environment with
// this zerorun's package, or the Python that this zerorun is for. Throws ConfigError if there is
// none.
void choose_python(PythonCommand& command, const std::string& tool, const ProgramSearch& search) {
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
  choose_python(command, fmt::format("{}", fmt::join(tool.words, " ")), search);
  if (tool.starts_zerorun) {
    command.words.push_back("--command=" + (search.launcher_directory / "zerorun").string());
  }
  return command;
}

}  // namespace

void define_python_tools(CLI::App& tools) {
  for (const PythonTool& tool : python_tools()) {
    CLI::App* const parent =
        tool.words.size() == 1 ? &tools : tools.get_subcommand(tool.words.front());
    CLI::App* app = add_tool(*parent, tool.words.back().c_str(), tool.about, "");
    for (const PythonOption& option : tool.options) {
      if (*option.value == '\0') {
        app->add_flag(option.name, option.about);
      } else if (option.choices.empty()) {
        takes_text(app->add_option(option.name, option.about), option.value);
      } else {
        takes_one_of(app->add_option(option.name, option.about), option.choices);
      }
    }
  }
}

std::optional<PythonCommand> python_tool_command(const std::vector<std::string>& arguments,
                                                 const ProgramSearch& search,
                                                 const Environment& environment) {
  if (asks_for_tuning(arguments)) {
    PythonCommand command =
        module_command({{"tune"}, "zerorun.tune", "", {}, false, true}, search, environment);
    command.words.insert(command.words.end(), arguments.begin(), arguments.end());
    return command;
  }
  for (const PythonTool& tool : python_tools()) {
    const auto end =
        arguments.begin() + static_cast<ptrdiff_t>(std::min(tool.words.size(), arguments.size()));
    if (!std::equal(arguments.begin(), end, tool.words.begin(), tool.words.end())) continue;
    PythonCommand command = module_command(tool, search, environment);
    command.words.insert(command.words.end(), tool.keeps_words ? arguments.begin() : end,
                         arguments.end());
    return command;
  }
  return std::nullopt;
}

void become(const PythonCommand& command) {
  const auto pointers = [](std::vector<std::string>& words) {
    std::vector<char*> found;
    for (std::string& word : words) found.push_back(word.data());
    found.push_back(nullptr);
    return found;
  };
  std::vector<std::string> words = command.words;
  std::vector<std::string> variables = environment_block(command.environment);
  ::execve(words.front().c_str(), pointers(words).data(), pointers(variables).data());
  fail<IoError>("cannot execute {}: {}", words.front(), std::strerror(errno));
}

}  // namespace zerorun
