#pragma once

#include <filesystem>
#include <string>

#include "os/file_descriptor.h"

namespace zerorun::train {

// Locks a folder against other runs as long as this object exists. The system releases the lock
// when the process ends, for whatever reason. The lock file also records the last job that used the
// folder.
class FolderLock {
 public:
  static constexpr const char* kName = ".train.lock";

  FolderLock() = default;  // locks nothing
  // `job` is the name of the job, without line breaks, or empty. Throws IoError that names process
  // and host of the run that has locked the folder. Does not lock if the file system does not
  // support locks.
  FolderLock(const std::filesystem::path& folder, const std::string& job);

  // Returns the last job that used the folder; "" if unknown.
  static std::string last_job(const std::filesystem::path& folder);

 private:
  FileDescriptor file_;
};

}  // namespace zerorun::train
