#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "os/process_identity.h"
#include "os/process_stacks.h"

namespace zerorun {

// The activity of a rank when collectives stalled.
struct RankActivity {
  int rank = 0;
  int pid = 0;
  std::string host;
  std::string state;      // "waits", or of its process: "runs", "sleeps", "is stopped", "has ended"
  std::string operation;  // its last one; "none"
  std::string label;      // of that: a bucket, a parameter
  std::optional<int> waits_for;  // a rank
  double waited_s = 0;
  ProcessStacks stacks{};  // of a rank that waits for nobody
};

// The state of a process of this host that waits in no collective.
std::string state_of(const ProcessIdentity& process);

// Why a job stands still: one line for each rank, and the stacks of those that the others wait for.
class StallReport {
 public:
  // `reason`: the error of the rank that waited too long, in a group of so many ranks of the job's.
  StallReport(std::string reason, int world_size, int job_size)
      : reason_(std::move(reason)), world_size_(world_size), job_size_(job_size) {}

  void add(const std::vector<RankActivity>& ranks);

  // For people. Of ranks that wait it shows some; stacks are those of the others.
  std::string table() const;
  // All of it, for programs.
  std::string json() const;
  // Prints the table on standard error and writes the JSON to ZERORUN_STALL_FILE or to a new file
  // in the folder of temporary files, which the last line names.
  // `rank`: this rank's number in the job, which begins each line.
  void write(int rank) const;

 private:
  std::string reason_;
  int world_size_;
  int job_size_;
  std::vector<RankActivity> ranks_;  // ascending
};

// The ranks of a host on their way through a store. `decode` throws CommError.
std::string encode_activities(const std::vector<RankActivity>& ranks);
std::vector<RankActivity> decode_activities(const std::string& text);

}  // namespace zerorun
