#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "comm/hierarchical/watch.h"
#include "comm/links.h"
#include "zerorun/error.h"

namespace zerorun::hierarchical {

// The messages in flight of one operation. wait() waits for them in the order in which they were
// started.
class Messages {
 public:
  // The arguments must outlive this.
  Messages(Links& links, Watch& watch, const shm::Announcement& operation)
      : links_(links), watch_(watch), operation_(operation) {}

  void send(int peer, uint64_t tag, std::span<const std::byte> bytes) {
    if (!bytes.empty()) add(peer, [&] { return links_.send(peer, tag, bytes); });
  }
  void receive(int peer, uint64_t tag, std::span<std::byte> bytes) {
    if (!bytes.empty()) add(peer, [&] { return links_.receive(peer, tag, bytes); });
  }
  // Waits for the oldest `count` messages.
  void wait(size_t count) {
    for (; count > 0; --count) {
      watch_.wait(*pending_.front().transfer, pending_.front().peer, operation_);
      pending_.pop_front();
    }
  }
  void wait() { wait(pending_.size()); }

 private:
  struct Pending {
    int peer = 0;
    std::unique_ptr<Transfer> transfer;
  };

  template <typename Start>
  void add(int peer, const Start& start) {
    try {
      pending_.push_back({peer, start()});
    } catch (const CommError& error) {
      watch_.explain(peer, operation_, error.what());
    }
  }

  Links& links_;
  Watch& watch_;
  const shm::Announcement& operation_;
  std::deque<Pending> pending_;
};

}  // namespace zerorun::hierarchical
