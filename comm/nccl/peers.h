#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group_options.h"
#include "comm/stall_report.h"
#include "os/process_identity.h"

namespace zerorun {

// The side channel of an NCCL communicator's ranks, through the store: who has joined, errors, the
// operations that ranks wait for, and who has left. Safe to use from several threads.
class NcclPeers {
 public:
  // `options` must outlive this object. `device`: the number of this rank's GPU.
  NcclPeers(const GroupOptions& options, int device);

  // Publishes this rank's process, host and GPU, so that whoever dies before it has met the others
  // is known.
  void arrive();
  // Pass rank 0's unique id of the communicator to the other ranks. While a rank waits, it calls
  // `check`, which throws to give up.
  using Check = std::function<void()>;
  void give_id(const std::string& id);
  std::string wait_for_id(const Check& check) const;
  // Learns what all ranks have published.
  void meet(const Check& check);
  int ranks_of_this_host() const;
  // Numbers of the GPUs of other ranks that are threads of this process.
  std::vector<int> devices_of_this_process() const;

  // The first error that a peer has reported; waits for one up to `timeout`.
  std::optional<std::string> error(std::chrono::milliseconds timeout) const;
  void report(std::string_view error) noexcept;
  // True for the first rank that claims this, and for all without a store.
  bool claim(const std::string& what) noexcept;
  std::string prefix() const { return options_.name + "/nccl/"; }  // of keys of the store
  // What this rank is doing, and what it sees of a rank that does not answer.
  std::vector<RankActivity> own_activity(std::string last_call,
                                         std::optional<double> waited_s) const;
  std::vector<RankActivity> silent(int rank) const;

  // Announces that this rank leaves after its first `calls` calls.
  void leave(int64_t calls) noexcept;
  // Waits on rank 0, which serves the store, until the other ranks have left, for at most some
  // seconds.
  void wait_until_all_left() const noexcept;
  // False in a forked child process, which is not a rank.
  bool is_this_process() const { return own_.process.pid == getpid(); }
  // True if all other ranks of this host have announced that they leave, or nobody can know.
  bool others_leave() const;
  // Announces that this rank ends its communicator without the others.
  void leave_alone() noexcept;
  // True if a rank has announced that, or died before it left, as far as this one can see.
  bool any_gone() const;
  // Explains why some rank will never make its `call`th call, named `what`, for which this rank
  // waits. Empty while all ranks still may.
  std::string missing(int64_t call, const std::string& what) const;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kNever = Clock::time_point::max();
  static constexpr int64_t kStays = -1;
  struct Presence {
    ProcessIdentity process;
    int32_t device = 0;
    uint64_t host = 0;       // hash of the host's name in the options; 0: take the process's
    int64_t calls = kStays;  // calls that it made before it left
  };

  std::string key(const std::string& what) const { return prefix() + what; }
  std::string rank_key(int rank) const { return key("rank/" + std::to_string(rank)); }
  std::optional<std::string> find(const std::string& key, std::chrono::milliseconds timeout) const;
  std::optional<Presence> presence(int rank, std::chrono::milliseconds timeout) const;
  Presence presence_in(const std::string& bytes, int rank) const;
  static std::string bytes_of(const Presence& presence) {
    return {reinterpret_cast<const char*>(&presence), sizeof(presence)};
  }
  [[noreturn]] void fail_to_join() const;
  bool is_of_this_host(const Presence& peer) const {
    return peer.process.boot_id == own_.process.boot_id && peer.host == own_.host;
  }
  bool has_died(const ProcessIdentity& process) const {
    return own_.process.can_see(process) && !is_running(process);
  }

  const GroupOptions& options_;
  Presence own_;
  std::vector<Presence> met_;  // by rank; empty until all have met
  // When the store, and so rank 0, was first found to be unreachable.
  mutable std::atomic<Clock::time_point> gone_since_ = kNever;
};

}  // namespace zerorun
