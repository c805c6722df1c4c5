#pragma once

#include <chrono>
#include <string>

#include "os/process_identity.h"

namespace zerorun {

// The signal at which Python's faulthandler writes stacks, and the name of the file
// (memfd_create(2)) to which it writes. The Python package registers both on the main thread.
int python_stack_signal();
inline constexpr const char* kPythonStackFile = "zerorun python stacks";

// Requests the Python stacks of all threads of a process, which may be this one. The result is
// empty if the process does not answer within `patience`, because it is stopped, has ended, or does
// not run Python.
//
// The signal goes to the main thread, whose handler runs on a stack of its own: the process may be
// in a function that uses a block of the heap as its stack (oneDNN's sgemm does), which a handler
// there, or on another thread, would overwrite.
std::string python_stacks_of(const ProcessIdentity& process, std::chrono::milliseconds patience);

}  // namespace zerorun
