#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace zerorun {

// Returns the free bytes of the file system that contains `path`; nullopt if unknown.
std::optional<uint64_t> free_space(const std::filesystem::path& path);

}  // namespace zerorun
