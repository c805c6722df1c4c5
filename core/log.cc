#include "core/log.h"

#include <unistd.h>

#include <array>

namespace zerorun {

void Logger::write(LogLevel level, std::string_view text) const {
  constexpr std::array<std::string_view, 3> kPrefix = {"", "warning: ", "error: "};
  const std::string who = world_size_ > 1 ? fmt::format(" {}/{}", rank_, world_size_) : "";
  const std::string line =
      fmt::format("[zerorun{}] {}{}\n", who, kPrefix[static_cast<size_t>(level)], text);
  // A log line that cannot be written is dropped, since there is no other place to report it.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace zerorun
