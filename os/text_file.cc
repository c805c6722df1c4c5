#include "os/text_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <system_error>

#include "core/check.h"
#include "os/file_descriptor.h"
#include "os/uninterrupted.h"

namespace zerorun {

namespace {

bool is_pipe(int descriptor) {
  struct stat info = {};
  return ::fstat(descriptor, &info) == 0 && S_ISFIFO(info.st_mode);
}

}  // namespace

// O_NONBLOCK: opening a pipe that nobody writes to would wait for a writer.
int try_read_text(const std::filesystem::path& path, uint64_t limit, std::string& text) {
  text.clear();
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return errno;
  constexpr uint64_t kBlock = 64 << 10;
  while (text.size() <= limit) {
    const size_t before = text.size();
    text.resize(before + std::min(kBlock, limit + 1 - before));
    const ssize_t count = uninterrupted(
        [&] { return ::read(file.get(), text.data() + before, text.size() - before); });
    const int error = count < 0 ? errno : 0;
    text.resize(before + static_cast<size_t>(std::max<ssize_t>(count, 0)));
    if (count == 0) return text.empty() && is_pipe(file.get()) ? ENODATA : 0;
    if (error == EAGAIN) {  // a pipe with a writer who has more
      pollfd wanted{.fd = file.get(), .events = POLLIN, .revents = 0};
      ::poll(&wanted, 1, -1);
    } else if (error != 0) {
      return error;
    }
  }
  return EFBIG;
}

std::string read_text(const std::filesystem::path& path, uint64_t limit) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored)) {
    fail<IoError>("{} is not a regular file", path.string());
  }
  std::string text;
  const int error = try_read_text(path, limit, text);
  if (error == EFBIG) {
    fail<IoError>("{} is longer than {} bytes, the most that is expected", path.string(), limit);
  }
  if (error != 0) {
    fail<IoError>("cannot open {}: {}", path.string(), std::generic_category().message(error));
  }
  return text;
}

std::istringstream text_after(const std::filesystem::path& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return std::istringstream(line.substr(key.size()));
  }
  return {};
}

}  // namespace zerorun
