#include "train/run/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
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
  return fmt::format("process {} on {}", ::getpid(), host.data());
}

// The two lines of a lock file: the process that holds the lock, and its job.
struct Holder {
  std::string process;
  std::string job;
};

Holder read_holder(int file) {
  std::array<char, 1024> text{};
  const ssize_t count = ::pread(file, text.data(), text.size(), 0);
  const std::string all(text.data(), count > 0 ? static_cast<size_t>(count) : 0);
  const size_t end = std::min(all.find('\n'), all.size());
  Holder holder{.process = all.substr(0, end), .job = {}};
  if (end < all.size()) holder.job = all.substr(end + 1, all.find('\n', end + 1) - end - 1);
  return holder;
}

FileDescriptor open_lock(const std::filesystem::path& folder, int flags) {
  const std::string path = (folder / FolderLock::kName).string();
  return FileDescriptor(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0666));
}

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& folder, const std::string& job)
    : file_(open_lock(folder, O_RDWR | O_CREAT)) {
  const auto fail_writing = [&](int reason) {
    fail<IoError>("--save {}: cannot write {}: {}", folder.string(), kName, std::strerror(reason));
  };
  if (!file_) fail_writing(errno);
  if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return;
    const std::string process = read_holder(file_.get()).process;
    fail<IoError>(
        "--save {}: another run saves there, {}: wait until it has ended, or give this run another "
        "--save",
        folder.string(), process.empty() ? "another process" : printable(process));
  }
  const std::string text = fmt::format("{}\n{}\n", own_name(), job);
  const bool written =
      ::ftruncate(file_.get(), 0) == 0 &&
      ::pwrite(file_.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
  if (!written) fail_writing(errno);
}

std::string FolderLock::last_job(const std::filesystem::path& folder) {
  const FileDescriptor file = open_lock(folder, O_RDONLY);
  return file ? read_holder(file.get()).job : std::string();
}

}  // namespace zerorun::train
