#include "os/open_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "core/check.h"
#include "os/uninterrupted.h"

namespace zerorun {

namespace {

// `call`: pread or pwrite.
template <typename Byte, typename Call>
size_t move_all(uint64_t offset, std::span<Byte> bytes, const Call& call) {
  constexpr size_t kMost = size_t{1} << 30;  // Linux moves at most 2 GiB - 4 KiB at once
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = uninterrupted([&] {
      return call(bytes.data() + done, std::min(bytes.size() - done, kMost),
                  static_cast<off_t>(offset + done));
    });
    if (count == 0) errno = 0;
    if (count <= 0) break;
    done += static_cast<size_t>(count);
  }
  return done;
}

}  // namespace

FileDescriptor open_file(const std::filesystem::path& path, int flags) {
  return FileDescriptor(
      uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); }));
}

int reserve_blocks(int file, uint64_t nbytes) {
  return uninterrupted([&] { return ::fallocate(file, 0, 0, static_cast<off_t>(nbytes)); });
}

size_t read_at(int file, uint64_t offset, std::span<std::byte> bytes) {
  return move_all(offset, bytes, [file](auto... place) { return ::pread(file, place...); });
}

size_t write_at(int file, uint64_t offset, std::span<const std::byte> bytes) {
  return move_all(offset, bytes, [file](auto... place) { return ::pwrite(file, place...); });
}

void open_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // The lowest free number is taken: exactly the missing one.
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) != fd) {
      fail<IoError>("cannot open /dev/null: {}", std::strerror(errno));
    }
  }
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
