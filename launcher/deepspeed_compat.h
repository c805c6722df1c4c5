#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "launcher/environment.h"
#include "launcher/program.h"

namespace zerorun {

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
