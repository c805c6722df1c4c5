#pragma once

#include <cstdint>
#include <mutex>

#include "core/observers.h"

namespace zerorun {

// How long a thread has been blocked, by what it waited for, in nanoseconds.
struct WaitTimes {
  int64_t peers_ns = 0;   // other ranks that had not arrived at a collective
  int64_t copies_ns = 0;  // offloading: copies, files, and updates on the host's threads
};

// Adds up the waits of one thread. Other threads may read it: a thread that waits for a stream's
// thread waits for whatever that one waits for.
class WaitClock {
 public:
  // The clock of the calling thread: its own, or that which adopt() gave it.
  static WaitClock& of_this_thread();
  // Makes this the clock of the calling thread, until the thread ends.
  void adopt();

  // A wait of this thread for other ranks; a further one within it counts once.
  void begin();
  void end();
  void add(WaitTimes waited);
  // With the part of a wait for other ranks that is already over.
  WaitTimes read() const;
  // What this thread does is offloading, except for its waits for other ranks.
  void serve_offloading();
  bool serves_offloading() const;

 private:
  mutable std::mutex mutex_;
  // Guarded by the mutex.
  WaitTimes total_;
  int64_t since_ns_ = 0;
  int depth_ = 0;
  bool serves_offloading_ = false;
};

// Counts the time from its construction to its destruction as a wait for other ranks.
class PeerWait {
 public:
  PeerWait() : clock_(WaitClock::of_this_thread()) { clock_.begin(); }
  ~PeerWait() { clock_.end(); }
  PeerWait(const PeerWait&) = delete;
  PeerWait& operator=(const PeerWait&) = delete;

 private:
  WaitClock& clock_;
};

// Counts the time from its construction to its destruction as whatever the thread of `clock` waited
// for meanwhile. The rest is offloading if that thread serves it.
class StreamWait {
 public:
  explicit StreamWait(const WaitClock& clock) : clock_(clock), before_(clock.read()) {}
  ~StreamWait();
  StreamWait(const StreamWait&) = delete;
  StreamWait& operator=(const StreamWait&) = delete;

 private:
  const WaitClock& clock_;
  const WaitTimes before_;
  const int64_t begin_ns_ = steady_ns();
};

}  // namespace zerorun
