#pragma once

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace zerorun {

// Move-only owner of an open file descriptor (file, socket, ...).
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    other.close();
    return *this;
  }
  ~FileDescriptor() { close(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  // Gives up ownership; the caller has to close the descriptor.
  int release() { return std::exchange(fd_, -1); }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

// What to do about an error whose cause is a limit of the process, to follow its text.
inline const char* remedy_of_limit(int error) {
  return error == EMFILE  ? ": raise the limit of open files (ulimit -n)"
         : error == EFBIG ? ": raise the limit of a file's size (ulimit -f)"
                          : "";
}

}  // namespace zerorun
