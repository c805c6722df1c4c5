#include "train/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "core/check.h"
#include "core/printable.h"

namespace zerorun::train {

namespace {

std::string own_name() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format("process {} on {}\n", ::getpid(), host.data());
}

std::string holder_of(int file) {
  std::array<char, 300> text{};
  const ssize_t count = ::pread(file, text.data(), text.size(), 0);
  std::string name(text.data(), count > 0 ? static_cast<size_t>(count) : 0);
  while (name.ends_with('\n')) name.pop_back();
  return name.empty() ? "another process" : printable(name);
}

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& folder) {
  const std::string path = (folder / kName).string();
  file_ = FileDescriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!file_) fail<IoError>("--save: cannot write {}: {}", path, std::strerror(errno));
  if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return;
    fail<IoError>(
        "--save {}: another run saves there, {}: wait until it has ended, or give this run another "
        "--save",
        folder.string(), holder_of(file_.get()));
  }
  const std::string name = own_name();
  const bool written =
      ::ftruncate(file_.get(), 0) == 0 &&
      ::pwrite(file_.get(), name.data(), name.size(), 0) == static_cast<ssize_t>(name.size());
  if (!written) fail<IoError>("--save: cannot write {}: {}", path, std::strerror(errno));
}

}  // namespace zerorun::train
