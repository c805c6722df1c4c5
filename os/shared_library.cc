#include "os/shared_library.h"

#include <dlfcn.h>
#include <link.h>

#include <mutex>

#include "core/check.h"

namespace zerorun {

SharedLibrary::SharedLibrary(std::span<const std::string> names) {
  ZR_CHECK(!names.empty(), "got no library to open");
  // One thread at a time: ThreadSanitizer does not see the loader's own lock around its records.
  static std::mutex opening;
  const std::lock_guard lock(opening);
  constexpr int kFlags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
  for (const std::string& name : names) {
    if (handle_ == nullptr && !name.empty()) handle_ = dlopen(name.c_str(), kFlags | RTLD_NOLOAD);
  }
  std::string reasons;
  for (const std::string& name : names) {
    if (handle_ != nullptr) break;
    if (name.empty()) continue;
    handle_ = dlopen(name.c_str(), kFlags);
    if (handle_ != nullptr) break;
    const char* reason = dlerror();
    reasons += fmt::format("{}{}", reasons.empty() ? "" : "; ", reason == nullptr ? name : reason);
  }
  if (handle_ == nullptr) {
    fail<DeviceError>("cannot open {} ({}); install it, or add its folder to LD_LIBRARY_PATH",
                      names.front(), reasons);
  }
  link_map* map = nullptr;
  const bool known = dlinfo(handle_, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr;
  path_ = known ? map->l_name : names.front();
}

void* SharedLibrary::symbol(const char* name) const {
  void* const found = dlsym(handle_, name);
  if (found == nullptr) fail<DeviceError>("{} has no function {}: too old", path_, name);
  return found;
}

std::string describe_library(std::string_view name, std::span<const std::string> files,
                             const std::function<std::string(const SharedLibrary&)>& version,
                             std::string_view remedy) {
  try {
    const SharedLibrary library(files);
    return fmt::format("{} {} ({})", name, version(library), library.path());
  } catch (const DeviceError& error) {
    return fmt::format("{}: missing: {}. {}", name, error.what(), remedy);
  }
}

}  // namespace zerorun
