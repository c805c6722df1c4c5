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

// The streams of a rank under --log_dir, --redirects, --tee and --local_ranks_filter. With
// --log_dir alone all is logged and local rank 0 of the first host (`speaks`) still prints.
RankStreams plan_streams(const OutputRequest& request, int local_rank, bool speaks);

// Throws ConfigError unless `value` of `option` is torchrun's: "3", or "0:1,2:3" by local rank,
// where 0 is neither stream, 1 standard output, 2 standard error and 3 both.
void check_streams(std::string_view option, const std::string& value);

}  // namespace zerorun
