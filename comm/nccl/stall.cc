#include "comm/nccl/stall.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "comm/stall_report.h"
#include "core/check.h"
#include "core/log.h"
#include "os/process_identity.h"
#include "os/python_stacks.h"

namespace zerorun {

namespace {

constexpr const char* kAsked = "stall asked";
constexpr const char* kWaits = "waits";
constexpr std::chrono::milliseconds kNow{0};
constexpr std::chrono::seconds kAskBeat{1};
// Watchers look once in a beat whether somebody asks, and stacks take up to a second.
constexpr std::chrono::milliseconds kAnswers{4000};
constexpr std::chrono::milliseconds kReport{2 * kAnswers};
constexpr std::chrono::milliseconds kStackPatience{1000};
constexpr size_t kMaxNames = 8;  // in a message

std::string key_of(int rank) { return fmt::format("stall/{}", rank); }

}  // namespace

NcclStall::NcclStall(const GroupOptions& options, NcclPeers& peers,
                     std::function<std::string()> last_call)
    : options_(options), peers_(peers), last_call_(std::move(last_call)) {}

void NcclStall::begin() {
  const std::lock_guard lock(mutex_);
  ++begun_;
  notice_ = {};
}

// Ranks come to this one after the other, and the first of them speaks for all.
void NcclStall::warn(double waited_s) {
  constexpr double kTurn = 0.3;
  constexpr int kTurns = 16;
  const double turn = waited_s - kTurn * std::min(options_.rank, kTurns);
  std::string told;
  {
    const std::lock_guard lock(mutex_);
    const auto waited = std::chrono::duration<double>(std::max(turn, 0.0));
    if (!notice_.due(std::chrono::duration_cast<Clock::duration>(waited))) return;
    told = fmt::format("told/{}/{}", begun_, notice_.next().count());
  }
  try {
    if (peers_.read(told, kNow)) return;
    peers_.write(told, "");
  } catch (const CommError&) {  // NOLINT(bugprone-empty-catch): without a store each tells
  }
  Logger(options_.own_number(), options_.job_size)
      .log(LogLevel::warning, "rank {} has waited {:.0f} s in {} for other ranks",
           options_.own_number(), waited_s, last_call_());
}

void NcclStall::publish_activity(std::optional<double> waited_s) {
  if (std::exchange(published_, true)) return;
  const ProcessIdentity process = this_process();
  RankActivity mine;
  mine.rank = options_.own_number();
  mine.pid = process.pid;
  mine.host = host_name();
  mine.state = waited_s ? kWaits : state_of(process);
  mine.waited_s = waited_s.value_or(0);
  if (!waited_s) mine.python_stacks = python_stacks_of(process, kStackPatience);
  mine.operation = last_call_();
  peers_.write(key_of(options_.rank), encode_activities({mine}));
}

std::string NcclStall::answer(std::optional<double> waited_s) {
  if (published_ || Clock::now() - asked_at_ < kAskBeat) return {};
  asked_at_ = Clock::now();
  const std::optional<std::string> reason = peers_.read(kAsked, kNow);
  if (!reason) return {};
  publish_activity(waited_s);
  return options_.rank == 0 ? write_report(*reason, kAnswers) : "";
}

std::string NcclStall::ask(const std::string& reason, std::optional<double> waited_s) {
  try {
    if (!peers_.read(kAsked, kNow)) peers_.write(kAsked, reason);
    publish_activity(waited_s);
  } catch (const CommError&) {  // the store is gone: this rank reports what it sees
    return write_report(reason, kNow);
  }
  if (options_.rank == 0) return write_report(reason, kAnswers);
  if (std::optional<std::string> error = peers_.error(kReport)) return *error;
  return write_report(reason, kNow);
}

// The activity that the rank has published, else what can be seen of its process.
RankActivity NcclStall::activity_of(int rank, Clock::time_point until) const {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(std::max(until - Clock::now(), {}));
  if (const std::optional<std::string> text = peers_.read(key_of(rank), left)) {
    return decode_activities(*text).at(0);
  }
  RankActivity silent;
  silent.rank = options_.number(rank);
  silent.operation = "?";
  silent.state = "did not answer";
  const std::optional<ProcessIdentity> process = peers_.visible(rank);
  if (!process) return silent;
  silent.pid = process->pid;
  silent.host = host_name();
  silent.state = fmt::format("did not answer; {}", state_of(*process));
  silent.python_stacks = python_stacks_of(*process, kStackPatience);
  return silent;
}

std::string NcclStall::write_report(const std::string& reason, std::chrono::milliseconds patience) {
  const Clock::time_point until = Clock::now() + patience;
  std::vector<RankActivity> ranks;
  ranks.reserve(static_cast<size_t>(options_.world_size));
  for (int rank = 0; rank < options_.world_size; ++rank) ranks.push_back(activity_of(rank, until));
  const auto waits = [](const RankActivity& rank) { return rank.state == kWaits; };
  const auto stuck = std::find_if_not(ranks.begin(), ranks.end(), waits);
  std::string names;
  size_t shown = 0;
  for (RankActivity& rank : ranks) {
    // NCCL does not tell for whom it waits.
    if (waits(rank) && stuck != ranks.end()) rank.waits_for = stuck->rank;
    if (waits(rank) && rank.operation == ranks.front().operation) continue;
    if (++shown > kMaxNames) continue;
    names += waits(rank) ? fmt::format("; rank {} waits in {}", rank.rank, rank.operation)
                         : fmt::format("; rank {} {}", rank.rank, rank.state);
  }
  if (shown > kMaxNames) names += fmt::format("; and {} more", shown - kMaxNames);
  StallReport(reason, options_, std::move(ranks)).write();
  return reason + names;
}

}  // namespace zerorun
