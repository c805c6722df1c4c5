#include "offload/direct_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <system_error>

#include "core/check.h"
#include "device/memory_ledger.h"

namespace zerorun {

namespace {

namespace fs = std::filesystem;

std::string message_of(int error) { return std::generic_category().message(error); }

void check_folder(const fs::path& folder, const FilePurpose& purpose) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    fail<ConfigError>("{} {}: {}; expected a folder on a local disk", purpose.folder,
                      folder.string(), error ? error.message() : "not a folder");
  }
  struct statfs system {};
  if (::statfs(folder.c_str(), &system) == 0 &&
      (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC)) {
    fail<ConfigError>("{} {} is a folder in memory (tmpfs), not on a disk: give a folder on a disk",
                      purpose.folder, folder.string());
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

std::string describe_reservation(const fs::path& folder, uint64_t nbytes,
                                 const FilePurpose& purpose) {
  return fmt::format("{} {}: cannot reserve {} for {}", purpose.folder, folder.string(),
                     format_bytes(nbytes), purpose.content);
}

template <typename E>
[[noreturn]] void fail_for_space(const fs::path& folder, uint64_t nbytes, uint64_t available,
                                 const FilePurpose& purpose) {
  fail<E>("{}: {} are free. Free some, name another disk, or {}",
          describe_reservation(folder, nbytes, purpose), format_bytes(available), purpose.instead);
}

// Where the file system knows; looked at first, since reserving fills the disk before it fails.
std::optional<uint64_t> available_bytes(int fd) {
  struct statvfs space {};
  if (::fstatvfs(fd, &space) != 0) return std::nullopt;
  return uint64_t{space.f_bavail} * space.f_frsize;
}

void reserve(int fd, const fs::path& folder, uint64_t nbytes, const FilePurpose& purpose) {
  if (nbytes == 0) return;
  const auto available = available_bytes(fd);
  if (available && nbytes > *available) {
    fail_for_space<ConfigError>(folder, nbytes, *available, purpose);
  }
  int status = -1;
  do {
    status = ::fallocate(fd, 0, 0, static_cast<off_t>(nbytes));
  } while (status != 0 && errno == EINTR);
  if (status == 0) return;
  const int error = errno;
  // Others reserve at the same time: what this rank met, its peers may not have.
  if (error == ENOSPC) {
    fail_for_space<IoError>(folder, nbytes, available_bytes(fd).value_or(0), purpose);
  }
  fail<ConfigError>("{}: {}", describe_reservation(folder, nbytes, purpose),
                    error == EOPNOTSUPP
                        ? "its file system cannot reserve space (fallocate); name a folder on a "
                          "local disk, such as ext4 or xfs"
                        : message_of(error));
}

}  // namespace

void check_room(const fs::path& folder, uint64_t nbytes, int ranks, const FilePurpose& purpose) {
  if (nbytes == 0 || ranks == 1) return;  // one rank's file says it itself
  check_folder(folder, purpose);
  struct statvfs space {};
  if (::statvfs(folder.c_str(), &space) != 0 || space.f_blocks == 0) return;
  const uint64_t available = uint64_t{space.f_bavail} * space.f_frsize;
  const uint64_t needed = nbytes * static_cast<uint64_t>(ranks);
  if (needed <= available) return;
  fail<ConfigError>(
      "{} {}: the {} ranks of this host need {} there: {} are free. Free some, name another disk, "
      "or {}",
      purpose.folder, folder.string(), ranks, format_bytes(needed), format_bytes(available),
      purpose.instead);
}

DirectFile::DirectFile(const fs::path& folder, const std::string& label, uint64_t nbytes,
                       const FilePurpose& purpose)
    : nbytes_(nbytes) {
  check_folder(folder, purpose);
  file_.path = (folder / label).string();
  file_.fd = open_nameless(folder);
  if (file_.fd < 0) {
    const int error = errno;
    fail<ConfigError>("{} {}: cannot create a file: {}{}", purpose.folder, folder.string(),
                      message_of(error),
                      error == EINVAL ? "; its file system has no direct I/O (O_DIRECT): give a "
                                        "folder on a local disk"
                                      : "");
  }
  try {
    reserve(file_.fd, folder, nbytes, purpose);
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
