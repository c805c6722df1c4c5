#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace zerorun {

enum class LogLevel { info, warning, error };

// Writes lines like "[zerorun 1/2] warning: text" to stderr, each with one system call so that
// lines of several ranks do not mix. `Logger` is a value; there is no global logger.
class Logger {
 public:
  Logger() = default;
  Logger(int rank, int world_size) : rank_(rank), world_size_(world_size) {}

  // Prints on every rank.
  template <typename... Args>
  void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) const {
    write(level, fmt::format(format, std::forward<Args>(args)...));
  }
  // These print on rank 0 only.
  template <typename... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) const {
    if (rank_ == 0) log(LogLevel::info, format, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void warning(fmt::format_string<Args...> format, Args&&... args) const {
    if (rank_ == 0) log(LogLevel::warning, format, std::forward<Args>(args)...);
  }

 private:
  void write(LogLevel level, std::string_view text) const;

  int rank_ = 0;
  int world_size_ = 1;
};

}  // namespace zerorun
