#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/local_rank.h"

namespace zerorun {

// The program that every rank runs, found on this machine.
struct Program {
  std::vector<std::string> command;    // up to the program: {"/usr/bin/python3", "-u", "train.py"}
  std::vector<std::string> arguments;  // the user's, untouched
  bool python = false;
  std::string local_rank;  // the option that gets the rank's number, before its arguments; or ""
};

struct ProgramRequest {
  std::string name{};
  std::vector<std::string> arguments{};
  bool module = false;     // `name` is a Python module
  bool no_python = false;  // execute `name` itself, also when it ends in .py
  LocalRank local_rank = LocalRank::automatic;
  std::vector<std::string> commands{};  // of zerorun's, which a name that is nowhere may have meant
};

// The places in which programs are searched for.
struct ProgramSearch {
  std::filesystem::path launcher_directory;  // of the running zerorun
  std::string path;                          // PATH
  std::string python;                        // ZERORUN_PYTHON
  std::string virtual_env;                   // VIRTUAL_ENV

  // This process's.
  static ProgramSearch here();
};

// Names of the programs that come with zerorun, in ../libexec/zerorun/ of an installation as of a
// build.
std::vector<std::string> bundled_programs(const std::filesystem::path& launcher_directory);

// An executable file in one of the folders of `path`, which are joined by ':'.
std::optional<std::filesystem::path> find_in_path(const std::string& name, std::string_view path);

// True if that is what the request names.
bool is_bundled(const ProgramRequest& request, const ProgramSearch& search);

// A bundled program, a .py file, or an executable by path or in PATH, in this order. Throws
// ConfigError that says where was looked.
Program find_program(const ProgramRequest& request, const ProgramSearch& search);

// The command that rank `local_rank` executes.
std::vector<std::string> rank_command(const Program& program, int local_rank);

}  // namespace zerorun
