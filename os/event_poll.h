#pragma once

#include <sys/epoll.h>

#include <array>
#include <cstdint>
#include <span>

#include "os/file_descriptor.h"

namespace zerorun {

// Waits for many descriptors at a cost that does not grow with their number: epoll(7).
class EventPoll {
 public:
  // Throws IoError.
  EventPoll();

  // Readable while one of the watched descriptors is ready, so that poll() can wait for all.
  int fd() const { return epoll_.get(); }

  // `events` (EPOLLIN, EPOLLOUT, or 0: errors and hang-ups only) of the descriptor are reported
  // with `subject`. Throws IoError.
  void watch(int descriptor, uint32_t events, void* subject);
  void change(int descriptor, uint32_t events, void* subject);
  // Before the descriptor is closed: a copy of it in a child process would keep it in the set.
  void forget(int descriptor);

  // Those that are ready within `milliseconds` (-1: without limit), at most 64, until the next
  // call; none after a signal. Throws IoError.
  std::span<const epoll_event> wait(int milliseconds);

 private:
  FileDescriptor epoll_;
  std::array<epoll_event, 64> ready_{};
};

}  // namespace zerorun
