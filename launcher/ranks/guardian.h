#pragma once

#include <csignal>
#include <functional>

#include "launcher/ranks/process.h"

namespace zerorun {

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
