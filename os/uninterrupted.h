#pragma once

#include <cerrno>

namespace zerorun {

// Makes a system call, again if a signal interrupts it. Returns its result, which is not -1 with
// errno EINTR.
template <typename Call>
auto uninterrupted(const Call& call) {
  while (true) {
    const auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

}  // namespace zerorun
