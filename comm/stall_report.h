#pragma once

#include <cstdint>
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

}  // namespace zerorun
