#pragma once

#include <chrono>
#include <thread>

#include "zerorun/device.h"

namespace zerorun {

// Waits for an event that may come soon, with the caller's core: a thread that sleeps until a GPU
// wakes it goes on 50 to 100 us late. After `patience` it sleeps, too.
inline void synchronize_soon(const Event& event, std::chrono::microseconds patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (!event.ready() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  event.synchronize();
}

}  // namespace zerorun
