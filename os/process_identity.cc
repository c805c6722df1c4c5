#include "os/process_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <sstream>

#include "core/check.h"
#include "os/text_file.h"

namespace zerorun {

bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

ProcessIdentity this_process() {
  ProcessIdentity identity;
  identity.pid = getpid();
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  struct stat pid_namespace {};
  const std::optional<ProcessStat> stat = read_process_stat(identity.pid);
  if (!stat || boot_id.empty() || ::stat("/proc/self/ns/pid", &pid_namespace) != 0) {
    fail<CommError>("cannot read /proc/{}: ranks that share memory find each other through /proc",
                    identity.pid);
  }
  boot_id.copy(identity.boot_id.data(), identity.boot_id.size() - 1);
  identity.pid_namespace = pid_namespace.st_ino;
  identity.start_time = stat->start_time;
  return identity;
}

bool is_running(const ProcessIdentity& process) {
  const std::optional<ProcessStat> stat = read_process_stat(process.pid);
  if (!stat) {
    // Not there, or this process is out of file descriptors: only the first is an end.
    return access(fmt::format("/proc/{}", process.pid).c_str(), F_OK) == 0;
  }
  if (stat->start_time != process.start_time) return false;
  // The first thread of a process may end before the others do.
  const bool ended = stat->state == 'Z' || stat->state == 'X';
  return !ended || stat->threads > 1;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown host";
  return name.data();
}

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
