#pragma once

#include <filesystem>
#include <string_view>

namespace zerorun {

// Writes a file as a whole. A regular file, or one that does not exist yet, gets all of the new
// content or keeps what it had, also after a power failure or on a full disk; its permissions stay.
// Links are followed. What is no regular file (a pipe, a terminal, /dev/null, /dev/stdout) is
// written to, never replaced. Throws IoError naming the path and the system's reason.
void write_whole_file(const std::filesystem::path& path, std::string_view text);

}  // namespace zerorun
