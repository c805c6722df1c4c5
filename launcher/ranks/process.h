#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
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

// Starts a child in a process group of its own that is killed when this process ends. If it cannot
// be executed, it writes its errno (an int) to `failure`, which closes on success.
pid_t spawn(const SpawnRequest& request, const FileDescriptor& failure);

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

}  // namespace zerorun
