#pragma once

#include <cstddef>

namespace zerorun {

// Bytes that this process may still use without swapping or being killed: what the host has
// available, and what the memory limits of its control groups leave.
size_t available_memory();

}  // namespace zerorun
