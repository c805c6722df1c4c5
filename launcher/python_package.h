#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "launcher/environment.h"
#include "launcher/program.h"

namespace zerorun {

// Python packages on this machine, looked for as files: no Python is started for that.

// The folders lib/python3.X/site-packages, and Debian's lib/python3/dist-packages, below `prefix`.
std::vector<std::filesystem::path> package_folders(const std::filesystem::path& prefix);

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
