#include "device/plugin.h"

#include <dlfcn.h>

#include <array>
#include <filesystem>

#include "core/check.h"

namespace zerorun {

namespace {

namespace fs = std::filesystem;

// The program or library that holds this code.
fs::path own_file() {
  std::error_code error;
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_file), &info) != 0) {
    fs::path file = fs::canonical(info.dli_fname, error);
    if (!error) return file;
  }
  return fs::canonical("/proc/self/exe", error);
}

std::string find_plugin(std::string_view name) {
  const fs::path here = own_file().parent_path();
  constexpr auto kFolders = std::to_array<std::string_view>(
      {".", "lib", "../lib", "../" ZERORUN_LIBDIR, "../../lib", "../../" ZERORUN_LIBDIR});
  for (const std::string_view folder : kFolders) {
    const fs::path file = (here / folder / name).lexically_normal();
    std::error_code error;
    if (fs::exists(file, error)) return file.string();
  }
  fail<DeviceError>(
      "{} is missing beside {} and in the lib folders near it; install zerorun again, or build all "
      "of "
      "it (./dev build)",
      name, here.string());
}

}  // namespace

SharedLibrary open_plugin(std::string_view name) {
  return SharedLibrary(std::array<std::string, 1>{find_plugin(name)});
}

void check_plugin_build(const SharedLibrary& library, const BuildId& build) {
  if (build == build_id()) return;
  fail<DeviceError>("{} and {} are of different builds of zerorun: build or install them together",
                    library.path(), own_file().string());
}

}  // namespace zerorun
