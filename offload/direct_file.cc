#include "offload/direct_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "core/check.h"
#include "device/memory_ledger.h"

namespace zerorun {

namespace {

namespace fs = std::filesystem;

std::string message_of(int error) { return std::generic_category().message(error); }

void check_folder(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    fail<ConfigError>("nvme_path {}: {}; expected a folder on a local disk", folder.string(),
                      error ? error.message() : "not a folder");
  }
  struct statfs system {};
  if (::statfs(folder.c_str(), &system) == 0 &&
      (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC)) {
    fail<ConfigError>(
        "nvme_path {} is a folder in memory (tmpfs), not on a disk: give a folder on a disk, or "
        "offload to \"cpu\"",
        folder.string());
  }
}

// With no name at all where the file system can, else with one that is removed at once.
int open_nameless(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) return fd;
  std::string name = (folder / "zerorun-offload-XXXXXX").string();
  const int named = ::mkostemp(name.data(), O_DIRECT | O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

void reserve(int fd, const fs::path& folder, uint64_t nbytes) {
  if (nbytes == 0) return;
  int status = -1;
  do {
    status = ::fallocate(fd, 0, 0, static_cast<off_t>(nbytes));
  } while (status != 0 && errno == EINTR);
  if (status == 0) return;
  const int error = errno;
  struct statvfs space {};
  const bool known = ::statvfs(folder.c_str(), &space) == 0;
  const size_t left = known ? size_t{space.f_bavail} * space.f_frsize : 0;
  fail<ConfigError>(
      "nvme_path {}: cannot reserve {} for this rank's offloaded states: {}; {} are free. Free "
      "some, name another disk, or offload a smaller part "
      "(offload_optimizer.ratio)",
      folder.string(), format_bytes(nbytes), message_of(error), format_bytes(left));
}

}  // namespace

DirectFile::DirectFile(const fs::path& folder, const std::string& label, uint64_t nbytes)
    : nbytes_(nbytes) {
  check_folder(folder);
  file_.path = (folder / label).string();
  file_.fd = open_nameless(folder);
  if (file_.fd < 0) {
    const int error = errno;
    fail<ConfigError>("nvme_path {}: cannot create a file: {}{}", folder.string(),
                      message_of(error),
                      error == EINVAL ? "; its file system has no direct I/O (O_DIRECT): give a "
                                        "folder on a local disk"
                                      : "");
  }
  try {
    reserve(file_.fd, folder, nbytes);
  } catch (...) {
    ::close(file_.fd);
    throw;
  }
}

DirectFile::~DirectFile() {
  if (map_ != nullptr) ::munmap(map_, nbytes_);
  ::close(file_.fd);
}

std::byte* DirectFile::map() {
  if (map_ != nullptr || nbytes_ == 0) return map_;
  void* const address = ::mmap(nullptr, nbytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_.fd, 0);
  if (address == MAP_FAILED) {
    fail<IoError>("{}: cannot map {} bytes: {}", file_.path, nbytes_, message_of(errno));
  }
  map_ = static_cast<std::byte*>(address);
  return map_;
}

void DirectFile::flush_map() {
  if (map_ == nullptr) return;
  if (::msync(map_, nbytes_, MS_SYNC) != 0) {
    fail<IoError>("{}: cannot write: {}", file_.path, message_of(errno));
  }
  ::madvise(map_, nbytes_, MADV_DONTNEED);
}

}  // namespace zerorun
