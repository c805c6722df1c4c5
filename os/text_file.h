#pragma once

#include <cstdint>
#include <filesystem>
#include <sstream>
#include <string>
#include <string_view>

namespace zerorun {

// Reads a whole file, which may be a pipe, into `text`. Returns 0 or an error number of the system;
// EFBIG if the file is longer than `limit` bytes, ENODATA for an empty pipe without a writer.
[[nodiscard]] int try_read_text(const std::filesystem::path& path, uint64_t limit,
                                std::string& text);
// Returns the content of a regular file. Throws IoError that names the path and the reason.
std::string read_text(const std::filesystem::path& path, uint64_t limit);
// What follows `key` on the first line that begins with it, as the kernel writes numbers below
// /proc and /sys. Nothing can be read from it if there is no such line.
std::istringstream text_after(const std::filesystem::path& path, std::string_view key);

}  // namespace zerorun
