#pragma once

#include <filesystem>
#include <string>

#include "os/file_descriptor.h"

namespace zerorun::train {

// Keeps other runs out of a folder as long as it exists; the system lifts it when the process ends,
// however that happens. Its file also says which job had the folder last.
class FolderLock {
 public:
  static constexpr const char* kName = ".train.lock";

  FolderLock() = default;  // locks nothing
  // `job`: its name, without line breaks; empty where it has none. Throws IoError, naming process
  // and host of the run that has locked the folder. Where the file system knows no locks, it locks
  // nothing.
  FolderLock(const std::filesystem::path& folder, const std::string& job);

  // The job that had the folder last; empty when that is not known.
  static std::string last_job(const std::filesystem::path& folder);

 private:
  FileDescriptor file_;
};

}  // namespace zerorun::train
