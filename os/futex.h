#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace zerorun {

// Sleeps until the word is woken, but only if it still holds `expected`, and at most for `timeout`.
// May return early. Works between processes that share the word's memory.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected,
                std::chrono::nanoseconds timeout);
// Wakes all sleepers.
void futex_wake(const std::atomic<uint32_t>& word);

}  // namespace zerorun
