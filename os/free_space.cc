#include "os/free_space.h"

#include <sys/statvfs.h>

namespace zerorun {

std::optional<uint64_t> free_space(const std::filesystem::path& path) {
  struct statvfs space {};
  if (::statvfs(path.c_str(), &space) != 0 || space.f_blocks == 0) return std::nullopt;
  return uint64_t{space.f_bavail} * space.f_frsize;
}

}  // namespace zerorun
