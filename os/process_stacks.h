#pragma once

#include <chrono>
#include <string>

#include "os/process_identity.h"

namespace zerorun {

// The functions in which a process is: the first thing to look at when it hangs.
struct ProcessStacks {
  std::string native;  // functions of its main thread, innermost first
  std::string python;  // of all threads, as Python's faulthandler writes them
};

// The two ends of Python's faulthandler: the signal at which it writes, and the name of the file
// (memfd_create(2)) to which it does. The package registers both.
int python_stack_signal();
inline constexpr const char* kPythonStackFile = "zerorun python stacks";

// From now on other processes of this user can ask this one for its native stack. Does nothing when
// the program uses the signal itself.
void answer_stack_requests();

// Asks a process, which may be this one. A text is empty when the process does not answer in
// `patience`: it is stopped, has ended, or never offered it.
ProcessStacks stacks_of(const ProcessIdentity& process, std::chrono::milliseconds patience);

// "libfoo.so: foo(int) + 0x12", of a line of backtrace_symbols(3).
std::string readable_frame(const std::string& line);

}  // namespace zerorun
