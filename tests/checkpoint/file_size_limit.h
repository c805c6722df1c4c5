#pragma once

#include <sys/resource.h>

#include <csignal>

namespace zerorun::testing {

// While this object exists, no file of this process grows beyond `nbytes`: a disk that is full, as
// far as write() can tell.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t nbytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &previous_);
    const rlimit limited = {nbytes, previous_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limited);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &previous_);
    ::signal(SIGXFSZ, SIG_DFL);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit previous_ = {};
};

}  // namespace zerorun::testing
