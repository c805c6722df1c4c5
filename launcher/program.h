#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/local_rank.h"

namespace zerorun {

// The program that every rank runs, as found on this machine.
struct Program {
  std::vector<std::string> command;    // up to the program: {"/usr/bin/python3", "-u", "train.py"}
  std::vector<std::string> arguments;  // of the user, unchanged
  bool python = false;
  std::string local_rank;  // the option for the local rank, before the arguments; or ""
};

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

// Finds a bundled program, a .py file, or an executable by path or in PATH, in this order. Throws
// ConfigError that lists the places searched.
Program find_program(const ProgramRequest& request, const ProgramSearch& search);

// The command that rank `local_rank` executes.
std::vector<std::string> rank_command(const Program& program, int local_rank);

}  // namespace zerorun
