#pragma once

#include "launcher/ranks/process.h"
#include "tests/common.h"

namespace zerorun::testing {

// The zerorun command as a user runs it: a real process with real ranks. Everything that it starts
// inherits a marker variable, by which survivors are found.
class LauncherProcess {
 public:
  // The program is given by its path or found in PATH.
  explicit LauncherProcess(std::vector<std::string> command,
                           std::map<std::string, std::string> variables = {},
                           std::string standard_input = "");
  LauncherProcess(const LauncherProcess&) = delete;
  LauncherProcess& operator=(const LauncherProcess&) = delete;
  // Kills what is left.
  ~LauncherProcess();

  pid_t pid() const { return pid_; }
  // Waits for the next line on standard output or error.
  std::string read_line();
  std::string read_error_line();
  // Waits until so many ranks have said "ready" on standard output.
  void await_ready(int ranks);
  // Waits for the process and the end of its output. Exit code as a shell gives it.
  int wait();
  // Output that read_line() has not taken.
  const std::string& output() const { return output_; }
  const std::string& errors() const { return errors_; }

  // Processes with the marker, the launcher included.
  std::vector<pid_t> members() const;

 private:
  // Waits for more output; false at the end of both streams.
  bool read_more();
  std::string take_line(std::string& from);

  std::string marker_;
  pid_t pid_ = -1;
  bool reaped_ = false;
  FileDescriptor output_pipe_;
  FileDescriptor error_pipe_;
  std::string output_;
  std::string errors_;
};

// zerorun itself, in front of `arguments`.
std::vector<std::string> zerorun_command(std::vector<std::string> arguments);

// zerorun starting ranks on CPUs that run a shell script.
std::vector<std::string> shell_ranks(int ranks, const std::string& script,
                                     std::vector<std::string> options = {});

std::multiset<std::string> lines_of(const std::string& text);

// Waits until all of `pids` have ended; false after a generous deadline.
bool wait_until_gone(const std::vector<pid_t>& pids);
pid_t parent_of(pid_t pid);
// Waits until the process is in a state of proc(5), such as 'T' for stopped.
bool wait_for_state(pid_t pid, char state);

}  // namespace zerorun::testing
