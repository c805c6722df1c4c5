#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace zerorun {

// Bytes that may still be written on the file system that holds `path`; nothing where the system
// does not know.
std::optional<uint64_t> free_space(const std::filesystem::path& path);

}  // namespace zerorun
