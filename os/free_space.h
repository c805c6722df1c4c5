#pragma once

#include <sys/statvfs.h>

#include <cstdint>
#include <filesystem>
#include <optional>

namespace zerorun {

// Returns the free bytes of the file system that contains `path`; nullopt if unknown.
inline std::optional<uint64_t> free_space(const std::filesystem::path& path) {
  struct statvfs space {};
  if (::statvfs(path.c_str(), &space) != 0 || space.f_blocks == 0) return std::nullopt;
  return uint64_t{space.f_bavail} * space.f_frsize;
}

}  // namespace zerorun
