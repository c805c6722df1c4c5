#pragma once

#include <poll.h>
#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <string>
#include <vector>

#include "os/file_descriptor.h"

namespace zerorun {

// Processes and file descriptors of the operating system.

struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};
// Makes a pipe whose ends are closed on exec.
Pipe make_pipe();

// Makes sure that standard input, output and error are open, so that no pipe gets their numbers.
void open_standard_streams();

struct SpawnRequest {
  std::vector<std::string> command;  // command[0] is a path
  std::vector<std::string> environment;
  std::vector<int> cpus;  // to run on; empty = all
  // Descriptors of the child's standard streams; -1 = the parent's.
  int standard_input = -1;
  int standard_output = -1;
  int standard_error = -1;
  int kept_open = -1;  // a descriptor that the child inherits with the same number
  sigset_t signal_mask{};
};

// Starts a child in a process group of its own that is killed when this process ends. Throws
// ConfigError if it cannot be executed.
pid_t spawn(const SpawnRequest& request);

// Makes orphaned descendants children of this process instead of init's (a subreaper).
void adopt_orphans();
// True if this process has a child, including one that has ended and is not reaped.
bool has_children();
// All descendants of this process.
std::vector<pid_t> descendants();
void kill_descendants();
// Kills and reaps all descendants, including new ones. SIGCHLD must be blocked. Returns false if
// some are left after `timeout` (a process in an uninterruptible wait).
bool end_descendants(std::chrono::milliseconds timeout);

// File descriptors to wait for, with a handler for each.
class PollSet {
 public:
  // Descriptors below zero are skipped.
  void add(int fd, short events, std::function<void()> handler);
  // Waits, without a limit if `timeout` is negative, and calls the handlers of the descriptors that
  // are ready. Throws IoError.
  void wait(std::chrono::milliseconds timeout);

 private:
  std::vector<pollfd> entries_;
  std::vector<std::function<void()>> handlers_;
};

// What a signal that is sent to the launcher means for the job.
enum class SignalRole {
  child,    // a child ended
  stop,     // end the job: ranks get the signal and time to save
  pass,     // passed to the ranks
  suspend,  // Ctrl-Z
  resume,
  none,
};
SignalRole role_of(int signal);

// The signals that launcher and supervisor block and read from a descriptor. SIGHUP is not among
// them if it was ignored when zerorun started (nohup).
sigset_t supervised_signals();
// Makes a descriptor from which the supervised signals are read. They have to be blocked. Throws
// IoError.
FileDescriptor open_signals();
// The signals that have arrived since the last call.
std::vector<int> take_signals(const FileDescriptor& signals);

// The name of a signal: "SIGKILL".
std::string signal_name(int signal);

}  // namespace zerorun
