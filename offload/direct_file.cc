#include "offload/direct_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "core/check.h"
#include "core/format_bytes.h"
#include "os/free_space.h"
#include "os/open_file.h"

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

bool same_disk(const fs::path& a, const fs::path& b) {
  struct stat one {};
  struct stat other {};
  return ::stat(a.c_str(), &one) == 0 && ::stat(b.c_str(), &other) == 0 &&
         one.st_dev == other.st_dev;
}

std::string describe_reservation(const fs::path& folder, uint64_t nbytes,
                                 const FilePurpose& purpose) {
  return fmt::format("{} {}: cannot reserve {} for {}", purpose.folder, folder.string(),
                     format_bytes(nbytes), purpose.content);
}

// `wanted` says who wants how much of which folder.
template <typename E>
[[noreturn]] void fail_for_space(const std::string& wanted, uint64_t available,
                                 const FilePurpose& purpose) {
  fail<E>("{}: {} are free. Free some, name another disk, or {}", wanted, format_bytes(available),
          purpose.instead);
}

void reserve(int fd, const fs::path& folder, uint64_t nbytes, const FilePurpose& purpose) {
  if (nbytes == 0) return;
  // Looked at first, since reserving fills the disk before it fails.
  const auto available = free_space(folder);
  if (available && nbytes > *available) {
    fail_for_space<ConfigError>(describe_reservation(folder, nbytes, purpose), *available, purpose);
  }
  if (reserve_blocks(fd, nbytes) == 0) return;
  const int error = errno;
  // Others reserve at the same time: what this rank met, its peers may not have.
  if (error == ENOSPC) {
    fail_for_space<IoError>(describe_reservation(folder, nbytes, purpose),
                            free_space(folder).value_or(0), purpose);
  }
  fail<ConfigError>("{}: {}", describe_reservation(folder, nbytes, purpose),
                    error == EOPNOTSUPP
                        ? "its file system cannot reserve space (fallocate); name a folder on a "
                          "local disk, such as ext4 or xfs"
                        : message_of(error));
}

}  // namespace

void check_room(std::span<const FileRequest> files, int ranks) {
  for (const FileRequest& file : files) {
    if (file.nbytes == 0) continue;
    check_folder(file.folder, file.purpose);
    uint64_t needed = 0;
    for (const FileRequest& other : files) {
      if (same_disk(file.folder, other.folder)) needed += other.nbytes;
    }
    needed *= static_cast<uint64_t>(ranks);
    if (needed == file.nbytes) continue;  // the file says it itself
    const auto available = free_space(file.folder);
    if (!available || needed <= *available) continue;
    fail_for_space<ConfigError>(
        fmt::format("{} {}: the files of the {} of this host need {} on that disk",
                    file.purpose.folder, file.folder.string(),
                    ranks == 1 ? "rank" : fmt::format("{} ranks", ranks), format_bytes(needed)),
        *available, file.purpose);
  }
}

DirectFile::DirectFile(const fs::path& folder, const std::string& label, uint64_t nbytes,
                       const FilePurpose& purpose)
    : nbytes_(nbytes) {
  check_folder(folder, purpose);
  file_.path = (folder / label).string();
  descriptor_ = FileDescriptor(open_nameless(folder));
  file_.fd = descriptor_.get();
  if (!descriptor_) {
    const int error = errno;
    fail<ConfigError>("{} {}: cannot create a file: {}{}", purpose.folder, folder.string(),
                      message_of(error),
                      error == EINVAL ? "; its file system has no direct I/O (O_DIRECT): give a "
                                        "folder on a local disk"
                                      : "");
  }
  reserve(file_.fd, folder, nbytes, purpose);
}

DirectFile::~DirectFile() {
  if (map_ != nullptr) ::munmap(map_, nbytes_);
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

void DirectFile::flush_map(uint64_t offset, size_t nbytes) {
  std::byte* const pages = map() + offset;
  if (::msync(pages, nbytes, MS_SYNC) != 0) {
    fail<IoError>("{}: cannot write {} bytes at offset {}: {}", file_.path, nbytes, offset,
                  message_of(errno));
  }
  ::madvise(pages, nbytes, MADV_DONTNEED);
}

}  // namespace zerorun
