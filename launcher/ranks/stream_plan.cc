#include "launcher/ranks/stream_plan.h"

#include <algorithm>
#include <optional>

#include "core/check.h"
#include "core/parse_number.h"
#include "launcher/options.h"

namespace zerorun {

namespace {

constexpr unsigned kOutputBit = 1;
constexpr unsigned kErrorBit = 2;
constexpr unsigned kAllStreams = kOutputBit | kErrorBit;

// The streams that `value` names for a rank: a set of bits; nothing when it is malformed.
std::optional<unsigned> named_streams(std::string_view value, int local_rank) {
  if (value.find(':') == std::string_view::npos) {
    const std::optional<unsigned> all = value.empty() ? 0U : parse_number<unsigned>(value);
    return all && *all <= kAllStreams ? all : std::nullopt;
  }
  unsigned found = 0;
  for (;;) {
    const std::string_view part = value.substr(0, value.find(','));
    const size_t colon = std::min(part.find(':'), part.size());
    const std::optional<unsigned> rank = parse_number<unsigned>(part.substr(0, colon));
    const std::optional<unsigned> streams =
        parse_number<unsigned>(part.substr(std::min(colon + 1, part.size())));
    if (!rank || !streams || *streams > kAllStreams) return std::nullopt;
    if (*rank == static_cast<unsigned>(local_rank)) found = *streams;
    if (part.size() == value.size()) return found;
    value.remove_prefix(part.size() + 1);
  }
}

}  // namespace

RankStreams plan_streams(const OutputRequest& request, int local_rank, bool speaks) {
  const unsigned tee = named_streams(request.tee, local_rank).value_or(0);
  // --tee wins over --redirects: a stream that both name is printed.
  const unsigned files_only = named_streams(request.redirects, local_rank).value_or(0) & ~tee;
  const bool by_stream = !request.tee.empty() || !request.redirects.empty();
  const bool chosen = request.shown_ranks.empty() ||
                      std::find(request.shown_ranks.begin(), request.shown_ranks.end(),
                                local_rank) != request.shown_ranks.end();
  const auto plan = [&](unsigned bit) {
    StreamPlan stream;
    stream.logged = by_stream ? ((tee | files_only) & bit) != 0 : !request.log_dir.empty();
    stream.shown = by_stream ? (files_only & bit) == 0 : !stream.logged || speaks;
    stream.shown = stream.shown && chosen;
    return stream;
  };
  return {.output = plan(kOutputBit), .error = plan(kErrorBit)};
}

void check_streams(std::string_view option, const std::string& value) {
  if (!value.empty() && named_streams(value, 0)) return;
  fail<ConfigError>(
      "{} '{}': expected 0 (none), 1 (standard output), 2 (standard error) or 3 (both), or these "
      "by local rank, as in 0:1,2:3",
      option, value);
}

}  // namespace zerorun
