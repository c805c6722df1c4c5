#include "os/process_stat.h"

#include <fmt/format.h>

#include <sstream>
#include <string>

#include "os/text_file.h"

namespace zerorun {

std::optional<ProcessStat> read_process_stat(int32_t pid) {
  constexpr uint64_t kMaxBytes = 4096;
  std::string text;
  if (try_read_text(fmt::format("/proc/{}/stat", pid), kMaxBytes, text) != 0) return std::nullopt;
  // The second field, the program's name, may hold spaces and parentheses; it ends at the last one.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  ProcessStat stat;
  fields >> stat.state >> stat.parent;
  constexpr int kThreadsField = 20;
  constexpr int kStartTimeField = 22;
  std::string field;
  for (int number = 5; number < kThreadsField; ++number) fields >> field;
  fields >> stat.threads;
  for (int number = kThreadsField + 1; number < kStartTimeField; ++number) fields >> field;
  fields >> stat.start_time;
  if (!fields) return std::nullopt;
  return stat;
}

}  // namespace zerorun
