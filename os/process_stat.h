#pragma once

#include <cstdint>
#include <optional>

namespace zerorun {

// Fields of /proc/PID/stat (proc(5)).
struct ProcessStat {
  char state = '?';  // 'Z' and 'X': it has ended
  int32_t parent = 0;
  int64_t threads = 0;
  uint64_t start_time = 0;
};
// Nothing when there is no such process, or this one is out of file descriptors.
std::optional<ProcessStat> read_process_stat(int32_t pid);

}  // namespace zerorun
