#pragma once

#include <string>
#include <string_view>

namespace zerorun {

struct OutputRequest;

// The destinations of one stream of a rank.
struct StreamPlan {
  bool shown = true;    // on the terminal
  bool logged = false;  // in the rank's file under the log folder

  bool operator==(const StreamPlan&) const = default;
};

// The plans of both streams of a rank.
struct RankStreams {
  StreamPlan output;
  StreamPlan error;

  bool operator==(const RankStreams&) const = default;
};

// Plans the streams of a rank from --log_dir, --redirects, --tee and --local_ranks_filter. With
// --log_dir alone, all output is logged, and only local rank 0 of the first host (`speaks`) also
// prints.
RankStreams plan_streams(const OutputRequest& request, int local_rank, bool speaks);

// Throws ConfigError unless `value` of `option` has torchrun's format: "3", or "0:1,2:3" by local
// rank, where 0 is neither stream, 1 stdout, 2 stderr and 3 both.
void check_streams(std::string_view option, const std::string& value);

}  // namespace zerorun
