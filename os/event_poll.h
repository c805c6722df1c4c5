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

  // Returns a descriptor that is readable while one of the watched descriptors is ready, for use
  // with poll().
  int fd() const { return epoll_.get(); }

  // Reports `events` of the descriptor (EPOLLIN, EPOLLOUT, or 0 for errors and hang-ups only)
  // together with `subject`. Throws IoError.
  void watch(int descriptor, uint32_t events, void* subject);
  void change(int descriptor, uint32_t events, void* subject);
  // Stops watching. Must be called before the descriptor is closed, because a copy of it in a child
  // process would keep it in the set.
  void forget(int descriptor);

  // Waits up to `milliseconds` (-1: no limit) and returns the events, at most 64; none after a
  // signal. They are valid until the next call. Throws IoError.
  std::span<const epoll_event> wait(int milliseconds);

 private:
  FileDescriptor epoll_;
  std::array<epoll_event, 64> ready_{};
};

}  // namespace zerorun
