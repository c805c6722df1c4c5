#pragma once

#include <filesystem>
#include <string_view>

namespace zerorun {

// Writes a file atomically. A regular or new file gets all of the new content or keeps its old
// content, even after a power failure or on a full disk; its permissions do not change. Symbolic
// links are followed. Anything but a regular file (a pipe, a terminal, /dev/null, /dev/stdout) is
// written to, never replaced. Throws IoError that names the path and the system's reason.
void write_whole_file(const std::filesystem::path& path, std::string_view text);

// Checks that a file can be written later, and creates its folder if it is missing. Throws IoError
// that begins with `what`.
void prepare_output_file(const std::filesystem::path& path, std::string_view what);

// The steps of write_whole_file, for code that writes the new file itself:
//
// Follows the symbolic links of `path` and returns the resulting path, which need not exist. Does
// not follow links to open files such as /dev/stdout. Throws IoError for circular links.
std::filesystem::path follow_links(std::filesystem::path path);
// Gives an open file the permissions and, if possible, the owner of the file `old`, if that exists.
void copy_permissions(const std::filesystem::path& old, int descriptor);

}  // namespace zerorun
