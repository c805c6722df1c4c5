#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>

#include "os/file_descriptor.h"

namespace zerorun {

// Returns the user who owns the other end of a TCP connection, if that end is on this host and
// still open. `root` replaces "/" in tests.
std::optional<uid_t> user_of_peer(const FileDescriptor& connection,
                                  const std::filesystem::path& root = "/");

}  // namespace zerorun
