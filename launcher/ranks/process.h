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

// What execve takes, which points into `strings`.
std::vector<char*> exec_pointers(const std::vector<std::string>& strings);

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

// [Note: who ends whom]
// A job is three layers: the guardian (the process the user started), the supervisor (its child),
// and the ranks (the supervisor's children, each with its own descendants).
// - The guardian passes signals on and waits. It holds the write end of a pipe; when it dies, even
//   by kill -9, the supervisor reads the end of that pipe and kills everything below itself.
// - The supervisor does the work. When it dies, the kernel kills the ranks (PR_SET_PDEATHSIG), and
//   the guardian kills whatever else was below it.
// - Both are subreapers: a process that its parent has left behind becomes a child of the
//   supervisor, or of the guardian once that is gone, so no descendant is out of reach.

// Runs in the supervisor. `guardian` becomes readable (end of file) when the guardian is dead;
// `original_mask` is the signal mask for programs. Returns the exit code.
using Supervise = std::function<int(const FileDescriptor& guardian, const sigset_t& original_mask)>;

// Forks, and returns in both processes. The child is the supervisor: it runs `supervise` and
// returns its result. The parent is the guardian: it drops `supervise` with the descriptors that it
// holds and returns the supervisor's exit code. The caller has to exit with that code in both.
//
// With a `lifeline` (the read end of a pipe), the guardian kills everything if the pipe has been
// closed for some seconds and the supervisor has not ended, because it may be stopped.
int run_guarded(Supervise supervise, FileDescriptor lifeline = {});

}  // namespace zerorun
