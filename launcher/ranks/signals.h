#pragma once

#include <csignal>
#include <string>
#include <vector>

#include "os/file_descriptor.h"

namespace zerorun {

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
