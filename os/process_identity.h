#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace zerorun {

// A process of a machine: two identities are equal only if they are the same running process.
// Trivially copyable, so that it can stand in shared memory.
struct ProcessIdentity {
  std::array<char, 40> boot_id{};  // of the running kernel: the host
  uint64_t pid_namespace = 0;      // pids of another namespace (container) mean other processes
  uint64_t start_time = 0;         // tells a reused pid apart
  int32_t pid = 0;

  bool operator==(const ProcessIdentity&) const = default;
  // True when this process sees the other one under its pid.
  bool can_see(const ProcessIdentity& other) const {
    return boot_id == other.boot_id && pid_namespace == other.pid_namespace;
  }
};

// Throws CommError when /proc is not there.
ProcessIdentity this_process();

// False once a process that this one can see has ended, a zombie included.
bool is_running(const ProcessIdentity& process);

std::string host_name();

}  // namespace zerorun
