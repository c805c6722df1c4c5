#pragma once

#include <cstdint>
#include <filesystem>

#include "os/file_descriptor.h"

namespace zerorun {

// open(2), with O_CLOEXEC, and permissions for all that the umask allows. Empty, with errno set, on
// failure.
FileDescriptor open_file(const std::filesystem::path& path, int flags);
// Sets the size of a file and reserves its blocks on the disk. Returns -1, with errno set, on
// failure.
int reserve_blocks(int file, uint64_t nbytes);
// Makes changes of a folder's entries (files created, renamed or removed) survive a power failure.
// Throws IoError.
void sync_folder(const std::filesystem::path& folder);

}  // namespace zerorun
