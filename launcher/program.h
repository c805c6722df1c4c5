#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/environment.h"

namespace zerorun {

// The program that every rank runs, as found on this machine.
struct Program {
  std::vector<std::string> command;    // up to the program: {"/usr/bin/python3", "-u", "train.py"}
  std::vector<std::string> arguments;  // of the user, unchanged
  bool python = false;
  std::string local_rank;  // the option for the local rank, before the arguments; or ""
};

// Which Python programs get the argument --local_rank=N. DeepSpeed's launcher passes it always,
// torchrun never. automatic: to programs whose source mentions it.
enum class LocalRank { automatic, always, never };

struct ProgramRequest {
  std::string name{};
  std::vector<std::string> arguments{};
  bool module = false;     // `name` is a Python module
  bool no_python = false;  // execute `name` itself, also when it ends in .py
  LocalRank local_rank = LocalRank::automatic;
  std::vector<std::string> commands{};  // commands of zerorun, to suggest for an unknown name
};

// Where programs are searched.
struct ProgramSearch {
  std::filesystem::path launcher_directory;  // of the running zerorun
  std::string path;                          // PATH
  std::string python;                        // ZERORUN_PYTHON
  std::string virtual_env;                   // VIRTUAL_ENV

  // The values for this process.
  static ProgramSearch here();
};

// Names of the programs that are installed with zerorun, in ../libexec/zerorun/ of an installation
// or a build.
std::vector<std::string> bundled_programs(const std::filesystem::path& launcher_directory);

// Finds an executable file in one of the folders of `path`, which are separated by ':'.
std::optional<std::filesystem::path> find_in_path(const std::string& name, std::string_view path);

// True if the request names a bundled program.
bool is_bundled(const ProgramRequest& request, const ProgramSearch& search);
// Throws ConfigError if the working directory has been removed.
std::filesystem::path working_directory();

// Finds a bundled program, a .py file, or an executable by path or in PATH, in this order. Throws
// ConfigError that lists the places searched.
Program find_program(const ProgramRequest& request, const ProgramSearch& search);

// The command that rank `local_rank` executes.
std::vector<std::string> rank_command(const Program& program, int local_rank);

// The spelling of the option that a Python program takes: "--local_rank" or "--local-rank". Empty
// if its source does not mention the option, or mentions only an attribute that it sets itself.
std::string_view local_rank_option(std::string_view source);

// The source of a script, or of a module below the working directory; empty if there is none.
std::string program_source(const std::string& name, bool is_module,
                           const std::filesystem::path& working_directory);

// Python packages on this machine, looked for as files: no Python is started for that.

// True if `python` finds the package in its site-packages, in the user's, or on PYTHONPATH.
bool has_package(const std::filesystem::path& python, const std::string& name,
                 const Environment& environment);

// zerorun's Python package in an installation or a build tree.
struct OwnPackage {
  std::filesystem::path folder;  // contains zerorun/
  std::filesystem::path python;  // that it was installed or built for; may no longer exist
};
std::optional<OwnPackage> find_own_package(const std::filesystem::path& launcher_directory);

// Why `python` cannot import zerorun, and what to do, in one line; empty if it can.
std::string absent_package(const std::filesystem::path& python, const Environment& environment,
                           const std::filesystem::path& launcher_directory);

// The folders of zerorun's package `deepspeed`, which Python programs find through the environment.
struct CompatFolders {
  std::filesystem::path site;   // has the package, for PYTHONPATH
  std::filesystem::path bin;    // has the command deepspeed, for PATH
  std::filesystem::path start;  // has the module that every Python program of a job imports first
};

// Finds the folders in the installation or build tree of the launcher.
std::optional<CompatFolders> find_compat(const std::filesystem::path& launcher_directory);

// The folders for a Python program: if they are `wanted` (--deepspeed_compat), or if the program
// would otherwise find no DeepSpeed. Throws ConfigError if they are wanted and missing.
// ZERORUN_COMPAT=0 turns them off.
std::optional<CompatFolders> choose_compat(const Program& program, bool wanted,
                                           const ProgramSearch& search,
                                           const Environment& environment);

}  // namespace zerorun
