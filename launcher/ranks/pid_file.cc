#include "launcher/ranks/pid_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/check.h"
#include "os/file_descriptor.h"

namespace zerorun {

PidFile::PidFile() : path_(fmt::format("/tmp/{}.deepspeed", getpid())), owner_(getpid()) {
  // A file that an earlier process of this number left behind is replaced; a link that somebody
  // else put there is not followed.
  unlink(path_.c_str());
  const FileDescriptor file(
      open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
  const std::string text = fmt::format("{}", owner_);
  if (!file || write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    fail<IoError>("--save_pid: cannot write {}: {}", path_, std::strerror(errno));
  }
}

PidFile::~PidFile() {
  if (getpid() == owner_) unlink(path_.c_str());
}

}  // namespace zerorun
