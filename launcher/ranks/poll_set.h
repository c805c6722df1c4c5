#pragma once

#include <poll.h>

#include <chrono>
#include <functional>
#include <vector>

namespace zerorun {

// File descriptors to wait for, with a handler for each.
class PollSet {
 public:
  // Descriptors below zero are skipped.
  void add(int fd, short events, std::function<void()> handler);
  // Waits and calls the handlers of the descriptors that are ready. Throws IoError.
  void wait(std::chrono::milliseconds timeout);

 private:
  std::vector<pollfd> entries_;
  std::vector<std::function<void()>> handlers_;
};

}  // namespace zerorun
