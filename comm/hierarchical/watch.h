#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/group_options.h"
#include "comm/hierarchical/topology.h"
#include "comm/links.h"
#include "comm/shm/control.h"
#include "comm/stall_report.h"
#include "comm/waiting.h"

namespace zerorun::hierarchical {

// Ends every wait for a rank of another host, at the latest at the deadline. The watching thread of
// JobState copies errors of this host to the store and errors of other hosts from it, checks that
// other hosts are alive, prints notices about long waits, and ends a wait at the deadline. The
// first rank of each host reads the store for all ranks of its host. Rank 0, which serves the
// store, checks the heartbeats of the other hosts.
class Watch {  // size: what it is given, what its thread remembers, what all threads share
 public:
  // The arguments must outlive this.
  Watch(const GroupOptions& options, const Topology& topology, shm::Control& control, Links& links);

  // Waits for `transfer`, a message of `operation` from or to `peer`. Throws CommError.
  void wait(Transfer& transfer, int peer, const shm::Announcement& operation);

  // Throws the CommError for a broken connection to `peer`; `text` is the transport's message. If
  // another error is the cause, throws that one.
  [[noreturn]] void explain(int peer, const shm::Announcement& operation, const std::string& text);

  // Makes `text` the error of all ranks, unless they already have one, and throws the error.
  [[noreturn]] void fail(const std::string& text);
  // The same without throwing.
  void set_error(std::string_view text) noexcept;
  // Tells the peers that this rank makes no more calls, and waits a moment for connected peers,
  // because closing a connection would lose messages in flight.
  // `linked`: the ranks to which this one is connected, ascending.
  void leave(const std::vector<int>& linked) noexcept;
  // False in a forked child process, which is not a rank.
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
  bool store_is_gone() noexcept;
  // Rank 0 of the job, which serves the store. It may not be in this group.
  std::string name_of_server() const;
  void spread(const std::string& text) noexcept;
  void look();
  void read_store();
  void check_heartbeats();
  void check_wait();
  // True if this rank prints the notice about a long wait: no lower rank of this host waits for
  // another host.
  bool warns() const;
  // Called on the rank's own thread. Asks what all ranks do, and waits for the error.
  void report_stall(const std::string& reason);
  void write_own_host_report(const std::string& reason) noexcept;

  const GroupOptions& options_;
  const Topology& topology_;
  shm::Control& control_;
  Links& links_;
  Store& store_;
  const bool leads_;  // this is the first rank of its host
  const pid_t process_ = getpid();
  StallInquiry inquiry_;
  // Used by the watching thread only.
  std::vector<std::pair<std::string, Clock::time_point>> heartbeats_;  // last heartbeat, by host
  int64_t beats_ = 0;
  Clock::time_point asked_;
  std::optional<Clock::time_point> reported_;  // when this rank 0 gave the others a report's error
  Clock::time_point gone_ = Clock::time_point::max();  // when the store was first unreachable
  // Shared by all threads.
  std::mutex mutex_;
  std::optional<Waiting> waiting_;  // guarded by mutex_
  std::atomic<bool> spread_ = false;
  const std::shared_ptr<void> watched_;  // by the thread
};

}  // namespace zerorun::hierarchical
