#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "os/file_descriptor.h"

namespace zerorun {

// open(2), with O_CLOEXEC, and permissions for all that the umask allows. Empty, with errno set, on
// failure.
FileDescriptor open_file(const std::filesystem::path& path, int flags);
// Sets the size of a file and reserves its blocks on the disk. Returns -1, with errno set, on
// failure.
int reserve_blocks(int file, uint64_t nbytes);

// Addresses, sizes and file offsets of direct I/O are multiples of this.
inline constexpr size_t kDirectAlignment = 4096;
constexpr size_t align_direct(size_t nbytes) {
  return (nbytes + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
}
// Read or write a part of a file. Return the number of bytes that were moved: all, or fewer with
// errno set, to 0 where the file ends.
size_t read_at(int file, uint64_t offset, std::span<std::byte> bytes);
size_t write_at(int file, uint64_t offset, std::span<const std::byte> bytes);

// Makes sure that standard input, output and error are open, so that no other file gets their
// numbers.
void open_standard_streams();

// Makes changes of a folder's entries (files created, renamed or removed) survive a power failure.
// Throws IoError.
void sync_folder(const std::filesystem::path& folder);

}  // namespace zerorun
