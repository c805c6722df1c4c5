#pragma once

#include <chrono>
#include <string>

#include "os/process_identity.h"

namespace zerorun {

// The call stacks of a process, the first thing to look at if it hangs.
struct ProcessStacks {
  std::string native;  // stack of the main thread, innermost function first
  std::string python;  // stacks of all threads, as Python's faulthandler prints them
};

// The signal at which Python's faulthandler writes stacks, and the name of the file
// (memfd_create(2)) to which it writes. The Python package registers both.
int python_stack_signal();
inline constexpr const char* kPythonStackFile = "zerorun python stacks";

// Lets other processes of this user request the native stack of this process. Does nothing if the
// program uses the signal itself.
void answer_stack_requests();

// Requests the stacks of a process, which may be this one. A text is empty if the process does not
// answer within `patience`, because it is stopped, has ended, or does not support it.
ProcessStacks stacks_of(const ProcessIdentity& process, std::chrono::milliseconds patience);

// Turns a line of backtrace_symbols(3) into "libfoo.so: foo(int) + 0x12".
std::string readable_frame(const std::string& line);

}  // namespace zerorun
