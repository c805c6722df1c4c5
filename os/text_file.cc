#include "os/text_file.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "core/check.h"
#include "os/file_descriptor.h"

namespace zerorun {

int try_read_text(const std::filesystem::path& path, uint64_t limit, std::string& text) {
  text.clear();
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return errno;
  constexpr uint64_t kBlock = 64 << 10;
  while (text.size() <= limit) {
    const size_t before = text.size();
    text.resize(before + std::min(kBlock, limit + 1 - before));
    const ssize_t count = ::read(file.get(), text.data() + before, text.size() - before);
    const int error = count < 0 ? errno : 0;
    text.resize(before + static_cast<size_t>(std::max<ssize_t>(count, 0)));
    if (count == 0) return 0;
    if (error != 0 && error != EINTR) return error;
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

}  // namespace zerorun
