#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/group_options.h"
#include "os/process_identity.h"

namespace zerorun {

// The side channel of an NCCL communicator's ranks, through the store: their arrival, their errors,
// the operations that they wait for, and their departure. Safe to use from several threads.
class NcclPeers {
 public:
  // `options` must outlive this; `device` is this rank's GPU.
  NcclPeers(const GroupOptions& options, int device);

  // Announces this rank.
  void arrive();
  // Passes rank 0's unique id to the others; while they wait they call `check`, which throws when
  // there is a reason to give up.
  using Check = std::function<void()>;
  void give_id(const std::string& id);
  std::string wait_for_id(const Check& check) const;
  // Waits until all have arrived, and learns who they are.
  void meet(const Check& check);
  int ranks_of_this_host() const;
  // The GPUs of other ranks that are threads of this process.
  std::vector<int> devices_of_this_process() const;

  // The first error that a peer reports in time.
  std::optional<std::string> error(std::chrono::milliseconds timeout) const;
  void report(const std::string& error) noexcept;
  // Reads or writes a named value that this rank shares with the others through the store. `write`
  // throws CommError.
  std::optional<std::string> read(const std::string& what,
                                  std::chrono::milliseconds timeout) const {
    return find(key(what), timeout);
  }
  void write(const std::string& what, const std::string& value) {
    options_.store->set(key(what), value);
  }
  // The process of a rank, if it has been met and this one sees it.
  std::optional<ProcessIdentity> visible(int rank) const;

  // Announces that this rank makes no calls beyond the `calls` that it has made.
  void leave(int64_t calls) noexcept;
  // Rank 0's store goes with it: it stays until the others have left, for some seconds at most.
  void see_off() const noexcept;
  // False in a forked child, which is no rank.
  bool is_this_process() const { return own_.process.pid == getpid(); }
  // The reason why some rank will never make its `call`th call, `what`, for which this rank waits;
  // empty while all may.
  std::string missing(int64_t call, const std::string& what) const;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int64_t kStays = -1;
  struct Presence {
    ProcessIdentity process;
    int32_t device = 0;
    uint64_t host = 0;       // that the options name; 0: by the process
    int64_t calls = kStays;  // that it made before it left
  };

  std::string key(const std::string& what) const { return options_.name + "/nccl/" + what; }
  std::string rank_key(int rank) const { return key("rank/" + std::to_string(rank)); }
  std::string wait_for(const std::string& what, const Check& check) const;
  std::optional<std::string> find(const std::string& key, std::chrono::milliseconds timeout) const;
  std::optional<Presence> presence(int rank, std::chrono::milliseconds timeout) const;
  void show(const Presence& presence) const;
  [[noreturn]] void fail_to_join() const;
  bool has_died(const ProcessIdentity& process) const {
    return own_.process.can_see(process) && !is_running(process);
  }

  const GroupOptions& options_;
  Presence own_;
  std::vector<Presence> met_;  // by rank; empty until all have met
  // When the store was first found to be gone, and rank 0 with it.
  mutable std::atomic<Clock::time_point> gone_since_ = Clock::time_point::max();
};

}  // namespace zerorun
