#pragma once

#include <csignal>
#include <string>
#include <vector>

#include "os/file_descriptor.h"

namespace zerorun {

// The meaning for the job of a signal that is sent to the launcher.
enum class SignalRole {
  child,    // a child ended
  stop,     // end the job: ranks get the signal and time to save
  pass,     // the ranks' own business
  suspend,  // Ctrl-Z
  resume,
  none,
};
SignalRole role_of(int signal);

// The signals that launcher and supervisor read instead of being interrupted by them. A SIGHUP that
// was ignored when zerorun started (nohup) is not among them.
sigset_t supervised_signals();
// A descriptor at which they are read; they have to be blocked. Throws IoError.
FileDescriptor open_signals();
// Those that have come since.
std::vector<int> take_signals(const FileDescriptor& signals);

// "SIGKILL".
std::string signal_name(int signal);

}  // namespace zerorun
