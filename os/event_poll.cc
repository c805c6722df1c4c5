#include "os/event_poll.h"

#include <cerrno>
#include <cstring>

#include "core/check.h"

namespace zerorun {

namespace {

void control(int epoll, int operation, int descriptor, uint32_t events, void* subject) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = subject;
  if (epoll_ctl(epoll, operation, descriptor, &event) != 0) {
    fail<IoError>("epoll_ctl failed: {}", std::strerror(errno));
  }
}

}  // namespace

EventPoll::EventPoll() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) fail<IoError>("epoll_create1 failed: {}", std::strerror(errno));
}

void EventPoll::watch(int descriptor, uint32_t events, void* subject) {
  control(epoll_.get(), EPOLL_CTL_ADD, descriptor, events, subject);
}

void EventPoll::change(int descriptor, uint32_t events, void* subject) {
  control(epoll_.get(), EPOLL_CTL_MOD, descriptor, events, subject);
}

void EventPoll::forget(int descriptor) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor, nullptr);
}

std::span<const epoll_event> EventPoll::wait(int milliseconds) {
  const int count =
      epoll_wait(epoll_.get(), ready_.data(), static_cast<int>(ready_.size()), milliseconds);
  if (count < 0 && errno != EINTR) fail<IoError>("epoll_wait failed: {}", std::strerror(errno));
  return std::span(ready_).first(count < 0 ? 0 : static_cast<size_t>(count));
}

}  // namespace zerorun
