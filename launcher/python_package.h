#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "launcher/environment.h"

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

}  // namespace zerorun
