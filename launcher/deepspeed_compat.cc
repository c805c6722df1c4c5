#include "launcher/deepspeed_compat.h"

#include <string_view>
#include <system_error>
#include <vector>

#include "core/check.h"

namespace zerorun {

namespace {

namespace fs = std::filesystem;

// lib/python3.X/site-packages and Debian's lib/python3/dist-packages below `prefix`.
std::vector<fs::path> package_folders(const fs::path& prefix) {
  std::vector<fs::path> folders;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(prefix / "lib", error)) {
    if (!entry.path().filename().string().starts_with("python")) continue;
    for (const char* name : {"site-packages", "dist-packages"}) {
      if (fs::is_directory(entry.path() / name, error)) folders.push_back(entry.path() / name);
    }
  }
  return folders;
}

bool holds_deepspeed(const fs::path& folder) {
  std::error_code error;
  return fs::is_directory(folder / "deepspeed", error);
}

}  // namespace

std::optional<CompatFolders> find_compat(const fs::path& launcher_directory) {
  std::vector<fs::path> packages = package_folders(launcher_directory / "..");
  packages.push_back(launcher_directory / ".." / "python");  // a build tree
  std::error_code error;
  for (const fs::path& package : packages) {
    const fs::path compat = package / "zerorun" / "compat";
    if (fs::exists(compat / "site" / "deepspeed" / "__init__.py", error)) {
      return CompatFolders{fs::weakly_canonical(compat / "site"),
                           fs::weakly_canonical(compat / "bin"),
                           fs::weakly_canonical(compat / "start")};
    }
  }
  return std::nullopt;
}

bool has_deepspeed(const fs::path& python, const Environment& environment) {
  std::vector<fs::path> folders;
  // The prefixes of a virtual environment and of the installation that its python links to.
  for (const fs::path& prefix :
       {python.parent_path() / "..", fs::weakly_canonical(python).parent_path() / ".."}) {
    for (const fs::path& folder : package_folders(prefix)) folders.push_back(folder);
  }
  const std::string home = find_variable(environment, "HOME").value_or("");
  if (!home.empty()) {
    for (const fs::path& folder : package_folders(fs::path(home) / ".local")) {
      folders.push_back(folder);
    }
  }
  std::string_view path = environment.contains("PYTHONPATH")
                              ? std::string_view(environment.at("PYTHONPATH"))
                              : std::string_view();
  while (!path.empty()) {
    const size_t end = std::min(path.find(':'), path.size());
    folders.emplace_back(path.substr(0, end));
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  for (const fs::path& folder : folders) {
    if (holds_deepspeed(folder)) return true;
  }
  return false;
}

std::optional<CompatFolders> choose_compat(const Program& program, bool wanted,
                                           const ProgramSearch& search,
                                           const Environment& environment) {
  if (!program.python || find_variable(environment, "ZERORUN_COMPAT") == "0") return std::nullopt;
  if (!wanted && has_deepspeed(program.command.front(), environment)) return std::nullopt;
  std::optional<CompatFolders> folders = find_compat(search.launcher_directory);
  if (wanted && !folders) {
    fail<ConfigError>(
        "--deepspeed_compat: this zerorun has no Python package; install it with pip install, or "
        "build it with -DZERORUN_PYTHON=ON");
  }
  return folders;
}

}  // namespace zerorun
