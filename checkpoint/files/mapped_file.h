#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace zerorun {

// The bytes of a file, mapped into memory: they are read from the disk when they are accessed.
// Writing to them is an error; so is truncating the file meanwhile.
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
  // Gives back the memory of a part, which otherwise counts as this process's until memory is
  // short. It is read from the disk again when it is accessed. Bytes that are not the file's stay.
  void forget(std::span<const std::byte> part) const;

 private:
  std::span<std::byte> bytes_;
};

}  // namespace zerorun
