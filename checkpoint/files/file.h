#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "os/file_descriptor.h"

namespace zerorun {

// Most disks ask of memory that it begins at a multiple of this, for direct transfers.
inline constexpr size_t kMemoryAlignment = 512;

// An open file. Every error is an IoError that names the path, what was tried and the system's
// reason.
class File {
 public:
  // Throws if the file exists.
  static File create(const std::filesystem::path& path);
  static File open_to_read(const std::filesystem::path& path);
  static File open_to_write(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return descriptor_.get(); }
  uint64_t size() const;
  void resize(uint64_t nbytes);
  // Makes it so long, with room on the disk where the file system can promise that.
  void reserve(uint64_t nbytes);
  void write(uint64_t offset, std::span<const std::byte> bytes);
  // Bytes read: fewer than asked for only at the end of the file.
  size_t read(uint64_t offset, std::span<std::byte> out) const;
  // From now on reads of whole pages of the file, into memory that begins at a multiple of
  // kMemoryAlignment, go past the system's cache, where the file system lets them.
  void go_past_cache() noexcept;
  // Returns when everything written is on the device.
  void sync();
  // Asks the system to start bringing what was written to the device, without waiting.
  void start_sync(uint64_t offset, uint64_t nbytes) noexcept;
  // Asks the system to start reading this into its cache, without waiting.
  void start_read(uint64_t offset, uint64_t nbytes) const noexcept;
  // Asks the system to give the memory back in which it keeps this file.
  void drop_cache() const noexcept;

 private:
  File(std::filesystem::path path, int flags);

  std::filesystem::path path_;
  // Closing it has no error to report: those of delayed writes are reported by sync().
  FileDescriptor descriptor_;
};

// Creates the file, writes it and syncs it.
void write_text(const std::filesystem::path& path, const std::string& text);

// Makes the entries of a folder (files created in it, renamed, removed) survive a power failure.
void sync_folder(const std::filesystem::path& folder);
// False also when the system does not let us look.
bool path_exists(const std::filesystem::path& path);
// True also for a link that leads nowhere, and for what the system does not let us look at: what
// opens it says which.
bool entry_exists(const std::filesystem::path& path);
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);
// Creates the folder and its missing parents, so that they survive a power failure.
void create_folders(const std::filesystem::path& folder);

}  // namespace zerorun
