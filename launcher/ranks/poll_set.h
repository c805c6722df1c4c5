#pragma once

#include <poll.h>

#include <chrono>
#include <functional>
#include <vector>

namespace zerorun {

// Descriptors to wait for, and what to do when they are ready.
class PollSet {
 public:
  // Descriptors below zero are skipped.
  void add(int fd, short events, std::function<void()> handler);
  // Waits, and calls the handlers of those that are ready. Throws IoError.
  void wait(std::chrono::milliseconds timeout);

 private:
  std::vector<pollfd> entries_;
  std::vector<std::function<void()>> handlers_;
};

}  // namespace zerorun
