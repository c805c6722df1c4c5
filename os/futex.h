#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace zerorun {

// Sleeps until futex_wake is called for `word`, but only if `word` still has the value `expected`,
// and at most for `timeout`. May return early. Works between processes that share the memory of
// `word`.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected,
                std::chrono::nanoseconds timeout);
// Wakes all threads that sleep in futex_wait for `word`.
void futex_wake(const std::atomic<uint32_t>& word);

}  // namespace zerorun
