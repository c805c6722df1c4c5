#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/group_options.h"
#include "os/process_identity.h"

namespace zerorun {

// What one rank was doing when a wait in a collective reached its deadline.
struct RankActivity {
  int rank = 0;
  int pid = 0;
  std::string host;
  std::string state;      // "waits", or of its process: "runs", "sleeps", "is stopped", "has ended"
  std::string operation;  // its last one; "none"
  std::string label;      // of that operation: a bucket, a parameter
  std::optional<int> waits_for;  // a rank
  double waited_s = 0;
  std::string python_stacks;  // of a rank that waits for no other rank
};

inline constexpr const char* kWaits = "waits";
// Returns RankActivity::state for a process of this host that waits in no collective.
std::string state_of(const ProcessIdentity& process);

// The report of a job whose collectives make no progress: one line per rank, and the Python stacks
// of the ranks that others wait for.
class StallReport {
 public:
  // `reason`: the error of the rank whose wait reached the deadline. `options`: of this rank.
  StallReport(std::string reason, const GroupOptions& options, std::vector<RankActivity> ranks);

  // A table as text. It lists only some of the waiting ranks. For ranks that wait for no other rank
  // it has the Python stacks and the commands that print native ones.
  std::string table() const;
  // The whole report as JSON.
  std::string json() const;
  // Prints the table on stderr and writes the JSON to ZERORUN_STALL_FILE or to a new file in the
  // directory for temporary files; the last line names it.
  void write() const;

 private:
  std::string reason_;
  int rank_;        // this one's number in the job, with which each line begins
  int world_size_;  // ranks of the group
  int job_size_;
  std::vector<RankActivity> ranks_;  // ascending
};

// Convert the activities of a host's ranks to and from a value of a Store. decode_activities throws
// CommError for other text.
std::string encode_activities(const std::vector<RankActivity>& ranks);
std::vector<RankActivity> decode_activities(const std::string& text);

// Finds out through the store why a wait of a group of ranks has reached the deadline. The ranks
// answer in parts: each by itself with NCCL, else all of a host together. A part whose wait is late
// asks, every part publishes what its ranks are doing, and rank 0 prints one report, whose reason
// becomes the error of all.
//
// No function waits for another part, so one thread can do this for several groups.
class StallInquiry {
 public:
  struct Parts {
    int count = 0;
    int own = 0;
    // True if this rank shall answer for its part.
    std::function<bool()> claim;
    std::function<std::vector<RankActivity>()> own_ranks;  // may take one or two seconds
    // What this rank sees of a part that did not answer.
    std::function<std::vector<RankActivity>(int part)> silent_ranks;
  };
  // `options` must outlive this object. `prefix`: of the store's keys.
  StallInquiry(const GroupOptions& options, std::string prefix, Parts parts);

  // Asks all parts at the next look(), because a wait of this one has reached the deadline. Any
  // thread may call it; only the first call has an effect.
  void ask(std::string_view reason);
  // True if this part has asked or knows that another has. For the thread that looks.
  bool has_asked();
  // Called about ten times a second. Returns the error of all ranks if this rank has just printed
  // the report, else an empty string. `listens`: whether to see if another part asks. Throws
  // CommError if the store is unreachable.
  std::string look(bool listens = true);

  // The time after which rank 0 does not wait for more answers. Whoever asked prints a report of
  // its own if it has learnt nothing after twice the time.
  static constexpr std::chrono::seconds kAnswers{5};

 private:
  using Clock = std::chrono::steady_clock;

  // Learns that some part asks and answers. False if none does. `asked`: the reason of this part.
  bool answer(const std::string& asked, bool listens);
  // True if this rank writes the report now.
  bool writes(bool asks);
  // Reads answers up to the first that is missing, or all. True if none is missing.
  bool read_answers(bool all);
  std::string write_report();

  const GroupOptions& options_;
  const std::string prefix_;
  const Parts parts_;
  std::mutex mutex_;
  std::string asked_;  // the reason of this part; guarded by mutex_, like the next
  Clock::time_point asked_at_{};
  // These belong to the thread that looks.
  std::string reason_;                               // of the first part that asked; empty: none
  std::vector<std::optional<std::string>> answers_;  // by part
  Clock::time_point listened_{};
  bool answers_own_ = false;  // this rank answers for its part
  Clock::time_point answered_{};
  bool store_is_gone_ = false;
  bool written_ = false;
};

}  // namespace zerorun
