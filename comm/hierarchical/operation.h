#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "comm/hierarchical/collectives.h"
#include "comm/shm/reduce_kernels.h"
#include "zerorun/error.h"

namespace zerorun::hierarchical {

// Bytes of a chunk in the host's shared memory. At this size the synchronisation between chunks
// costs little.
inline constexpr size_t kWindowBytes = size_t{4} << 20;
// Up to here a copy costs less than the step that reading inputs in place needs at its end.
inline constexpr size_t kStagedBytes = size_t{16} << 10;
// Bytes of a chunk if each host has one rank, which then works in the caller's memory.
inline constexpr size_t kDirectBytes = size_t{16} << 20;

inline void copy(TensorView from, TensorView to) {
  if (from.data != to.data) copy_bytes(to.data, from.data, from.nbytes());
}
inline std::span<std::byte> bytes_of(TensorView view) { return {view.data, view.nbytes()}; }

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

// An operation in progress.
struct Collectives::Operation {
  Operation(Collectives& owner, const CollectiveCall& made)
      : call(made),
        announcement(shm::announcement_of(made)),
        peers(owner.linked_.size()),
        announcements(*owner.links_, *owner.watch_, announcement) {
    announcement.number = announcement.sequence = ++owner.sequence_;
    set_label(announcement, made.label);
  }
  Messages messages(Collectives& owner) const {
    return {*owner.links_, *owner.watch_, announcement};
  }

  const CollectiveCall& call;
  shm::Announcement announcement;
  std::vector<shm::Announcement> peers;  // those received, in the order of linked_
  Messages announcements;
  // The inputs of this host's ranks, by local rank, if all of them are in shared memory: they are
  // read in place. Otherwise empty.
  std::vector<std::shared_ptr<std::byte>> inputs;
  // The outputs of this host's ranks, by local rank, if all of them are in shared memory; results
  // are then written to them directly. Otherwise empty.
  std::vector<std::shared_ptr<std::byte>> outputs;
};

struct Collectives::Crossing {
  uint64_t round = 0;
  int slot = 0;
  TensorView partial;
  TensorView result;
  Messages arriving;  // sums of other hosts, for slices of this host's ranks
  Messages leaving;
  Messages finished;  // results of slices whose owners are on other hosts
};

// A chunk of every owner's row of a sum.
struct Collectives::Scatter {
  TensorView of(int owner) const {
    return {rows.data + static_cast<size_t>(owner * stride) * size_of(rows.dtype), numel,
            rows.dtype};
  }

  int slot = 0;
  int64_t begin = 0;  // in a row
  int64_t numel = 0;
  TensorView rows;     // the sums of this host: the first element of the first row
  int64_t stride = 0;  // from a row to the next
  Messages arriving;   // sums of other hosts, for this rank
  Messages leaving;
};

template <typename Body>
void Collectives::for_other_hosts(const Body& body) const {
  for (int host = 0; host < topology_.hosts(); ++host) {
    if (host != host_) body(host);
  }
}

template <typename Body>
void Collectives::for_owners(const Body& body) const {
  for_other_hosts([&](int host) {
    for (const int owner : topology_.ranks_of(host)) {
      if (topology_.relay(host_, owner) == rank()) body(owner);
    }
  });
}

}  // namespace zerorun::hierarchical
