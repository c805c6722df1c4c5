#include "launcher/python_package.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <system_error>

#include "core/check.h"

namespace zerorun {

namespace fs = std::filesystem;

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

bool has_package(const fs::path& python, const std::string& name, const Environment& environment) {
  std::vector<fs::path> folders;
  // The prefixes of a virtual environment and of the installation that its python links to.
  std::vector<fs::path> prefixes = {python.parent_path() / "..",
                                    fs::weakly_canonical(python).parent_path() / ".."};
  const std::string home = find_variable(environment, "HOME").value_or("");
  if (!home.empty()) prefixes.push_back(fs::path(home) / ".local");
  for (const fs::path& prefix : prefixes) {
    for (const fs::path& folder : package_folders(prefix)) folders.push_back(folder);
  }
  const std::string given = find_variable(environment, "PYTHONPATH").value_or("");
  for (std::string_view path = given; !path.empty();) {
    const size_t end = std::min(path.find(':'), path.size());
    folders.emplace_back(path.substr(0, end));
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  std::error_code error;
  return std::any_of(folders.begin(), folders.end(), [&](const fs::path& folder) {
    return fs::is_directory(folder / name, error);
  });
}

std::optional<OwnPackage> find_own_package(const fs::path& launcher_directory) {
  const fs::path prefix = launcher_directory / "..";
  std::error_code error;
  const fs::path built = prefix / "python";
  if (fs::is_directory(built / "zerorun", error)) {
    // The link itself, not what it leads to: by it Python knows its environment.
    return OwnPackage{fs::weakly_canonical(built), fs::read_symlink(built / "interpreter", error)};
  }
  std::vector<fs::path> folders = package_folders(prefix);
  folders.push_back(prefix / "..");  // a wheel's command is in zerorun/bin
  for (const fs::path& folder : folders) {
    if (fs::exists(folder / "zerorun" / "__init__.py", error)) {
      return OwnPackage{fs::weakly_canonical(folder), launcher_directory / "python3"};
    }
  }
  return std::nullopt;
}

std::string absent_package(const fs::path& python, const Environment& environment,
                           const fs::path& launcher_directory) {
  if (has_package(python, "zerorun", environment)) return {};
  const std::optional<OwnPackage> own = find_own_package(launcher_directory);
  if (!own) {
    return fmt::format(
        "{} does not have the package zerorun, and this zerorun was built without it; run `pip "
        "install .` in zerorun's sources for that environment",
        python.string());
  }
  return fmt::format(
      "{} does not have the package zerorun; this zerorun's is for {}: set ZERORUN_PYTHON={} and "
      "PYTHONPATH={}, or run `pip install .` in zerorun's sources for the environment that you use",
      python.string(), own->python.string(), own->python.string(), own->folder.string());
}

std::optional<CompatFolders> find_compat(const fs::path& launcher_directory) {
  const std::optional<OwnPackage> own = find_own_package(launcher_directory);
  if (!own) return std::nullopt;
  const fs::path compat = own->folder / "zerorun" / "compat";
  std::error_code error;
  if (!fs::exists(compat / "site" / "deepspeed" / "__init__.py", error)) return std::nullopt;
  return CompatFolders{fs::weakly_canonical(compat / "site"), fs::weakly_canonical(compat / "bin"),
                       fs::weakly_canonical(compat / "start")};
}

std::optional<CompatFolders> choose_compat(const Program& program, bool wanted,
                                           const ProgramSearch& search,
                                           const Environment& environment) {
  if (!program.python || find_variable(environment, "ZERORUN_COMPAT") == "0") return std::nullopt;
  if (!wanted && has_package(program.command.front(), "deepspeed", environment))
    return std::nullopt;
  std::optional<CompatFolders> folders = find_compat(search.launcher_directory);
  if (wanted && !folders) {
    fail<ConfigError>(
        "--deepspeed_compat: this zerorun has no Python package; install it with pip install, or "
        "build it with -DZERORUN_PYTHON=ON");
  }
  return folders;
}

}  // namespace zerorun
