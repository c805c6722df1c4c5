#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "launcher/environment.h"
#include "launcher/program.h"

namespace zerorun {

// The folders of zerorun's stand-in for DeepSpeed, which Python programs find through the
// environment.
struct CompatFolders {
  std::filesystem::path site;   // holds the package, for PYTHONPATH
  std::filesystem::path bin;    // holds the command deepspeed, for PATH
  std::filesystem::path start;  // holds what every Python program of a job begins with
};

// In the installation or build tree that the launcher belongs to.
std::optional<CompatFolders> find_compat(const std::filesystem::path& launcher_directory);

// The folders for a Python program: when they are `wanted`, and when it would find no DeepSpeed
// otherwise. Throws ConfigError when they are wanted and not there. ZERORUN_COMPAT=0 turns them
// off.
std::optional<CompatFolders> choose_compat(const Program& program, bool wanted,
                                           const ProgramSearch& search,
                                           const Environment& environment);

}  // namespace zerorun
