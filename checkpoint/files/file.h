#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "os/file_descriptor.h"
#include "os/open_file.h"

struct XXH3_state_s;

namespace zerorun {

// The alignment of memory that most disks require for direct I/O.
inline constexpr size_t kMemoryAlignment = 512;

// An open file. Every error is an IoError that names the path, the operation and the system's
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
  // Sets the size and, if the file system supports it, reserves the space on the disk.
  void reserve(uint64_t nbytes);
  void write(uint64_t offset, std::span<const std::byte> bytes);
  // Returns the number of bytes read, which is less than out.size() only at the end of the file.
  size_t read(uint64_t offset, std::span<std::byte> out) const;
  // From now on, reads of whole pages of the file into memory aligned to kMemoryAlignment bypass
  // the page cache, if the file system supports it.
  void go_past_cache() noexcept;
  // Waits until everything written is on the disk.
  void sync();
  // Asks the system to start writing this part to the disk. Does not wait.
  void start_sync(uint64_t offset, uint64_t nbytes) noexcept;
  // Asks the system to start reading this part into the page cache. Does not wait.
  void start_read(uint64_t offset, uint64_t nbytes) const noexcept;
  // Asks the system to drop this file from the page cache.
  void drop_cache() const noexcept;

 private:
  File(std::filesystem::path path, int flags);

  std::filesystem::path path_;
  // Closing it reports no error; errors of delayed writes are reported by sync().
  FileDescriptor descriptor_;
};

// Creates the file and writes it, but does not wait until it is on the disk.
File create_text(const std::filesystem::path& path, const std::string& text);

// Also false if the system denies access.
bool path_exists(const std::filesystem::path& path);
// True also for a link that leads nowhere, and for what the system does not let us look at: what
// opens it says which.
bool entry_exists(const std::filesystem::path& path);
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);
// Creates the folder and its missing parents so that they survive a power failure.
void create_folders(const std::filesystem::path& folder);

// The bytes of a file, mapped into memory: they are read from the disk when they are accessed.
// Writing to them is an error; so is truncating the file meanwhile.
class MappedFile {
 public:
  // Throws IoError.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<std::byte> bytes() const { return bytes_; }
  // Gives back the memory of a part, which otherwise counts as this process's until memory is
  // short. It is read from the disk again when it is accessed. Bytes that are not the file's stay.
  void forget(std::span<const std::byte> part) const;

 private:
  std::span<std::byte> bytes_;
};

// XXH3, 64 bits, seed 0: the checksum of every byte of a checkpoint.
class Hash {
 public:
  Hash();
  void update(std::span<const std::byte> bytes);
  uint64_t value() const;
  void reset();

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

uint64_t hash_of(std::span<const std::byte> bytes);
uint64_t hash_of(std::string_view text);

// Sixteen lower-case hexadecimal digits.
inline constexpr size_t kHexDigits = 16;
std::string to_hex(uint64_t value);
std::optional<uint64_t> from_hex(std::string_view text);

}  // namespace zerorun
