#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace zerorun {

// The bytes of a file, read from the disk as they are looked at. Writing to them is an error; so is
// shortening the file meanwhile.
class MappedFile {
 public:
  // Throws IoError.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

}  // namespace zerorun
