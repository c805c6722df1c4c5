#include "os/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace zerorun {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "the kernel reads 32 bits");

void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected,
                std::chrono::nanoseconds timeout) {
  constexpr int64_t kNanoseconds = 1'000'000'000;
  timespec limit{};
  limit.tv_sec = timeout.count() / kNanoseconds;
  limit.tv_nsec = timeout.count() % kNanoseconds;
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &limit, nullptr, 0);
}

void futex_wake(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace zerorun
