#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace zerorun {

// Identifies a running process: identities are equal only if they belong to the same process. It is
// trivially copyable, so that it can be stored in shared memory.
struct ProcessIdentity {
  std::array<char, 40> boot_id{};  // boot ID of the kernel, which identifies the host
  uint64_t pid_namespace = 0;      // pids of different namespaces (containers) are unrelated
  uint64_t start_time = 0;         // distinguishes processes that had the same pid
  int32_t pid = 0;

  bool operator==(const ProcessIdentity&) const = default;
  // True if this process can access the other one by its pid.
  bool can_see(const ProcessIdentity& other) const {
    return boot_id == other.boot_id && pid_namespace == other.pid_namespace;
  }
};

// Throws CommError if /proc is not available.
ProcessIdentity this_process();

// False if the process has ended or is a zombie. This process must be able to see it (can_see).
bool is_running(const ProcessIdentity& process);

std::string host_name();

// True if this process was told to ignore the signal, as nohup does for SIGHUP.
bool is_ignored(int signal);

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
