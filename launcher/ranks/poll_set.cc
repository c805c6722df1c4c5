#include "launcher/ranks/poll_set.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/check.h"

namespace zerorun {

void PollSet::add(int fd, short events, std::function<void()> handler) {
  if (fd < 0) return;
  entries_.push_back({fd, events, 0});
  handlers_.push_back(std::move(handler));
}

void PollSet::wait(std::chrono::milliseconds timeout) {
  const int milliseconds = static_cast<int>(std::max<int64_t>(0, timeout.count()));
  if (poll(entries_.data(), entries_.size(), milliseconds) < 0) {
    if (errno == EINTR) return;
    fail<IoError>("poll failed: {}", std::strerror(errno));
  }
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].revents != 0) handlers_[i]();
  }
}

}  // namespace zerorun
