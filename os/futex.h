#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace zerorun {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "the kernel reads 32 bits");

// Sleeps until futex_wake is called for `word`, but only if `word` still has the value `expected`,
// and at most for `timeout`. May return early. Works between processes that share the memory of
// `word`.
inline void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected,
                       std::chrono::nanoseconds timeout) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(timeout);
  const timespec limit{.tv_sec = seconds.count(), .tv_nsec = (timeout - seconds).count()};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &limit, nullptr, 0);
}
// Wakes all threads that sleep in futex_wait for `word`.
inline void futex_wake(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace zerorun
