#pragma once

#include <filesystem>

#include "os/file_descriptor.h"

namespace zerorun::train {

// Keeps other runs out of a folder as long as it exists; the system lifts it when the process ends,
// however that happens.
class FolderLock {
 public:
  static constexpr const char* kName = ".train.lock";

  FolderLock() = default;  // locks nothing
  // Throws IoError, naming process and host of the run that has locked the folder. Where the file
  // system knows no locks, it locks nothing.
  explicit FolderLock(const std::filesystem::path& folder);

 private:
  FileDescriptor file_;
};

}  // namespace zerorun::train
