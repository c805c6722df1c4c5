#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/environment.h"
#include "launcher/program.h"
#include "tools/ckpt/ckpt_report.h"
#include "tools/doctor/doctor.h"
#include "tools/plan/plan.h"
#include "zerorun/config.h"

namespace CLI {
class App;
}  // namespace CLI

// The commands of zerorun, and what they print.
namespace zerorun {

// Values of the arguments of tools. Must exist until parsing has finished.
struct ToolArguments {
  std::string path{};
  RunFacts facts{.world_size = 1};
  int elastic_ranks = 0;
  PlanOptions plan{};
  double bench_gib = 1;
  DoctorOptions doctor{};
  CkptArguments ckpt{};
  std::string shell{};
};

// Defines the tools in the groups (tasks) that the help shows.
void define_tools(CLI::App& tools, ToolArguments& arguments);

std::vector<std::string> command_names();

// Runs a tool: zerorun config, ckpt, env, ... `arguments` do not include the program's name.
// Returns the exit code, or nullopt if the first word is not the name of a tool. Throws ConfigError
// for invalid arguments, and the exceptions of the tools.
std::optional<int> run_tool(const std::vector<std::string>& arguments);

// Lists all commands, one per line, grouped by task.
std::string list_commands();

// Prints the help for a topic: a command of one or two words, launcher, train or environment;
// without a topic lists the commands. Throws ConfigError for other topics.
void print_help(const std::vector<std::string>& topic);

// A possible word of the command line, and its meaning.
struct Candidate {
  std::string word;
  std::string about;
};

// Completes the last of `words`, which are the words after zerorun up to the cursor; the last is
// empty if a new word begins. Candidates come from the definitions of the options. Returns none
// where any word is valid, such as the name of a file, which the shell completes.
std::vector<Candidate> complete(std::vector<std::string> words);

// Returns the candidates as lines "word<tab>meaning", for completion_script.
std::string candidates_text(const std::vector<std::string>& words);

// Returns the script that makes bash, zsh or fish call `zerorun completion --words` for candidates.
std::string completion_script(const std::string& shell);

// Defines names and options of the tools that are written in Python (report, monitor, top, tune,
// ckpt import and export), for help and completion. python_tool_command runs them. `ckpt` must
// already be defined.
void define_python_tools(CLI::App& tools);

// The command that runs such a tool: a Python interpreter, a module of the package, and the tool's
// arguments.
struct PythonCommand {
  std::vector<std::string> words;
  Environment environment;
};

// Returns the command for such a tool, or for `--autotuning` before a script, which means `zerorun
// tune`; nullopt for other arguments. The interpreter is that of the ranks if it has the package,
// else the one with which zerorun is installed or for which it was built. Throws ConfigError if
// neither has it.
std::optional<PythonCommand> python_tool_command(const std::vector<std::string>& arguments,
                                                 const ProgramSearch& search,
                                                 const Environment& environment);

// Replaces this process by the command. Throws IoError if it cannot be executed.
[[noreturn]] void become(const PythonCommand& command);

// Returns the text of `zerorun env`: this build, this machine as a job would use it, and the
// environment variables that zerorun reads. The text is meant for bug reports and does not contain
// the job secret.
std::string host_report();

// Returns a list of the environment variables that zerorun reads, with meaning and current value.
std::string environment_report();

// Measures the disk of a folder as NVMe offloading uses it: direct reads and writes with several
// sizes and numbers of requests, and the resulting time of a step per billion parameters. Calls
// `print` for each line. Uses `nbytes` of the disk while it runs. Throws ConfigError if the folder
// cannot be used for offloading.
void bench_nvme(const std::string& folder, uint64_t nbytes,
                const std::function<void(const std::string&)>& print);

// "zerorun 0.2.0 (commit 0123456789ab)".
std::string version_line();

}  // namespace zerorun
