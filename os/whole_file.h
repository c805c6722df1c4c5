#pragma once

#include <filesystem>
#include <string_view>

namespace zerorun {

// Writes a file as a whole. A regular file, or one that does not exist yet, gets all of the new
// content or keeps what it had, also after a power failure or on a full disk; its permissions stay.
// Links are followed. What is no regular file (a pipe, a terminal, /dev/null, /dev/stdout) is
// written to, never replaced. Throws IoError naming the path and the system's reason.
void write_whole_file(const std::filesystem::path& path, std::string_view text);

// Finds what would keep a program from writing a file later: makes its folder if there is none.
// Throws IoError that begins with `what`.
void prepare_output_file(const std::filesystem::path& path, std::string_view what);

// The same in steps, for a writer that makes the new file beside the old one by itself:
//
// The path behind the links of `path`, whether something is there or not; the link to an open file,
// as /dev/stdout, is the end. Throws IoError for links in a circle.
std::filesystem::path follow_links(std::filesystem::path path);
// Gives an open file the permissions, and where possible the owner, of the file at `old`, if there
// is one.
void copy_permissions(const std::filesystem::path& old, int descriptor);

}  // namespace zerorun
