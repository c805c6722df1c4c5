#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/group_options.h"
#include "comm/hierarchical/topology.h"
#include "comm/links.h"
#include "comm/rendezvous/lookup_store.h"
#include "comm/shm/control.h"
#include "comm/stall_report.h"
#include "comm/waiting.h"

namespace zerorun::hierarchical {

// Lets no wait for a rank of another host be endless. A thread takes errors of this host to the
// store and those of other hosts from it, looks whether other hosts are alive, says what a long
// wait waits for, and ends one that is too long. The first rank of each host asks the store for
// all; rank 0, which serves it, looks at the other hosts' signs of life.
//
// A wait that is too long is reported once: each host hands in what its ranks do, and rank 0 prints
// it and makes the first host's reason the error of all.
class Watch {  // size: what it is given, what its thread remembers, what all threads share
 public:
  // The arguments must outlive this.
  Watch(const GroupOptions& options, const Topology& topology, shm::Control& control, Links& links);
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch();

  // Waits for a message from or to `peer`, a part of `operation`. Throws CommError.
  void wait(Transfer& transfer, int peer, const shm::Announcement& operation);

  // Throws the CommError of a connection with `peer` that broke; `text` says how.
  [[noreturn]] void explain(int peer, const shm::Announcement& operation, const std::string& text);

  // Makes `text` the error of all ranks, unless there was one before; throws it.
  [[noreturn]] void fail(const std::string& text);
  // The same without throwing.
  void set_error(std::string_view text) noexcept;
  // Tells the peers that this rank takes part no more, and waits a moment for those with whom it is
  // connected: what is on its way to them would be lost with the connection.
  void leave() noexcept;
  // False in a forked child, which is no rank and has no thread.
  bool is_this_process() const { return process_ == getpid(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiting {
    int peer = 0;
    shm::Announcement operation;
    Clock::time_point since;
    WaitingNotice notice;
  };

  std::string key(std::string_view what, int number) const;
  std::optional<std::string> find(const std::string& key) noexcept;
  void spread(const std::string& text) noexcept;
  void run();
  void look();
  void ask_store();
  void look_at_hosts();
  void look_at_wait();
  // False when a lower rank of this host waits for another host, too: it tells.
  bool tells() const;
  // Hands this host's ranks in, and waits until rank 0 has reported. Where it does not, reports
  // them alone.
  void report_stall(const std::string& reason) noexcept;
  void hand_in(const std::string& reason);
  bool was_handed_in();
  void write_stall_report();
  std::vector<std::string> collect_stall();
  void write_own_host_report(const std::string& reason) noexcept;

  const GroupOptions& options_;
  const Topology& topology_;
  shm::Control& control_;
  Links& links_;
  LookupStore* const store_;  // null: it cannot be asked
  const bool leads_;          // the first rank of its host
  const pid_t process_ = getpid();
  // Used by the watching thread only.
  std::vector<std::pair<std::string, Clock::time_point>> signs_;  // of life, by host
  int64_t beats_ = 0;
  Clock::time_point asked_;
  Clock::time_point gone_ = Clock::time_point::max();  // when the store was first found to be gone
  // Shared by all threads.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Waiting> waiting_;  // guarded by mutex_
  bool closing_ = false;            // guarded by mutex_
  std::atomic<bool> spread_ = false;
  std::thread thread_;
};

}  // namespace zerorun::hierarchical
