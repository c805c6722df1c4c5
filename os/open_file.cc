#include "os/open_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "core/check.h"
#include "os/uninterrupted.h"

namespace zerorun {

FileDescriptor open_file(const std::filesystem::path& path, int flags) {
  return FileDescriptor(
      uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); }));
}

int reserve_blocks(int file, uint64_t nbytes) {
  return uninterrupted([&] { return ::fallocate(file, 0, 0, static_cast<off_t>(nbytes)); });
}

void sync_folder(const std::filesystem::path& folder) {
  const FileDescriptor descriptor = open_file(folder, O_RDONLY | O_DIRECTORY);
  const bool synced = descriptor && uninterrupted([&] { return ::fsync(descriptor.get()); }) == 0;
  // EINVAL: this file system has nothing to sync for a folder.
  if (synced || (descriptor && errno == EINVAL)) return;
  fail<IoError>("cannot bring {} to the disk: {}", folder.string(),
                std::generic_category().message(errno));
}

}  // namespace zerorun
