#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace zerorun {

// Reads a whole file, which may be a pipe, into `text`. Returns 0 or an error number of the system;
// EFBIG if the file is longer than `limit` bytes, ENODATA for an empty pipe without a writer.
[[nodiscard]] int try_read_text(const std::filesystem::path& path, uint64_t limit,
                                std::string& text);
// Returns the content of a regular file. Throws IoError that names the path and the reason.
std::string read_text(const std::filesystem::path& path, uint64_t limit);

}  // namespace zerorun
