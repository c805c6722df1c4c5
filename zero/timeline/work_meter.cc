#include "zero/timeline/work_meter.h"

#include <cmath>
#include <mutex>
#include <utility>

#include "zero/timeline/span_log.h"
#include "zerorun/device.h"

namespace zerorun {

namespace {

constexpr size_t kMaxIntervals = 1 << 16;  // of a kind in a step
constexpr double kNoWait = 1e-6;  // seconds: most waits find that nothing is to be waited for

SplitSeconds split(std::vector<TimeInterval> work, const std::vector<TimeInterval>& waits) {
  const std::vector<TimeInterval> busy = joined_intervals(std::move(work));
  const double exposed = total_seconds(shared_intervals(busy, waits));
  return SplitSeconds{exposed, total_seconds(busy) - exposed};
}

}  // namespace

struct WorkMeter::Log {
  // One kind of work since the last look.
  struct Work {
    std::vector<TimeInterval> intervals;
    bool is_known = true;

    void add(double begin_s, double end_s) {
      is_known = is_known && !std::isnan(begin_s) && intervals.size() < kMaxIntervals;
      if (is_known) intervals.push_back({begin_s, end_s});
    }
  };

  mutable std::mutex mutex;
  Work reductions;
  Work gathers;
  Work offload;
  Work waits;  // of the program, and its time in the engine's step
  std::array<double, kCollectives> collective_s{};

  void add(const WorkSpan& span) {
    const SpanKind kind = span_kind(span);
    const bool is_wait = kind == SpanKind::wait || kind == SpanKind::optimizer;
    if (kind == SpanKind::communication || (is_wait && span.end_s - span.begin_s < kNoWait)) return;
    if (!is_wait && span.stream == kProgramStream) return;
    const std::lock_guard lock(mutex);
    (is_wait ? waits : offload).add(span.begin_s, span.end_s);
  }

  void add(const CollectiveSpan& span) {
    const SpanKind kind = span_kind(span);
    const std::lock_guard lock(mutex);
    collective_s[static_cast<size_t>(span.op)] += span.end_s - span.begin_s;
    if (kind == SpanKind::reduction) reductions.add(span.begin_s, span.end_s);
    if (kind == SpanKind::gather) gathers.add(span.begin_s, span.end_s);
  }
};

WorkMeter::WorkMeter(Engine& engine, Communicator& comm) : log_(std::make_shared<Log>()) {
  const auto add = [log = log_](const auto& span) { log->add(span); };
  subscriptions_ = observe_all(engine, comm, add, add);
}

StepWork WorkMeter::take() {
  std::unique_lock lock(log_->mutex);
  Log::Work waits = std::exchange(log_->waits, {});
  Log::Work reductions = std::exchange(log_->reductions, {});
  Log::Work gathers = std::exchange(log_->gathers, {});
  Log::Work offload = std::exchange(log_->offload, {});
  lock.unlock();
  const std::vector<TimeInterval> waited = joined_intervals(std::move(waits.intervals));
  const auto part = [&](Log::Work& work) -> std::optional<SplitSeconds> {
    if (!work.is_known || !waits.is_known) return std::nullopt;
    return split(std::move(work.intervals), waited);
  };
  return {part(reductions), part(gathers), part(offload)};
}

std::array<double, kCollectives> WorkMeter::collective_seconds() const {
  const std::lock_guard lock(log_->mutex);
  return log_->collective_s;
}

}  // namespace zerorun
