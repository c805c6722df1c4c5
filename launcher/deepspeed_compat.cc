#include "launcher/deepspeed_compat.h"

#include <system_error>

#include "core/check.h"
#include "launcher/python_package.h"

namespace zerorun {

namespace fs = std::filesystem;

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
