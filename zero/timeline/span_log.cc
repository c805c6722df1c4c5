#include "zero/timeline/span_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace zerorun {

namespace {

// The rows of a rank from the top; streams that are not among them follow.
constexpr auto kTraceRows = std::to_array<std::string_view>(
    {"steps", "program", "reductions", "gathers", "agreements", "comm", "host"});
constexpr double kShownWait = 1e-6;  // seconds: most waits find that nothing is to be waited for

constexpr std::array<std::string_view, 10> kSpanKinds = {
    "step",   "compute",   "wait",          "optimizer", "reduction",
    "gather", "agreement", "communication", "copy",      "disk"};

// The engine's streams are "zerorun-" and what they do.
std::string_view trace_row(std::string_view stream) {
  constexpr std::string_view kPrefix = "zerorun-";
  return stream.starts_with(kPrefix) ? stream.substr(kPrefix.size()) : stream;
}

// Disjoint and ascending.
std::vector<TimeInterval> intervals_of(const std::vector<LoggedSpan>& spans, SpanKind kind) {
  std::vector<TimeInterval> all;
  for (const LoggedSpan& span : spans) {
    if (span.kind == kind) all.push_back({span.begin_s, span.end_s});
  }
  return joined_intervals(std::move(all));
}

constexpr size_t kMaxIntervals = 1 << 16;  // of a kind in a step

SplitSeconds split(std::vector<TimeInterval> work, const std::vector<TimeInterval>& waits) {
  const std::vector<TimeInterval> busy = joined_intervals(std::move(work));
  const double exposed = total_seconds(shared_intervals(busy, waits));
  return SplitSeconds{exposed, total_seconds(busy) - exposed};
}

}  // namespace

std::vector<TimeInterval> joined_intervals(std::vector<TimeInterval> all) {
  std::ranges::sort(all, {}, &TimeInterval::begin);
  std::vector<TimeInterval> joined;
  for (const TimeInterval& one : all) {
    if (joined.empty() || one.begin > joined.back().end) {
      joined.push_back(one);
    } else {
      joined.back().end = std::max(joined.back().end, one.end);
    }
  }
  return joined;
}

std::vector<TimeInterval> shared_intervals(const std::vector<TimeInterval>& a,
                                           const std::vector<TimeInterval>& b) {
  std::vector<TimeInterval> both;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const TimeInterval one{std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end)};
    if (one.begin < one.end) both.push_back(one);
    ++(a[i].end < b[j].end ? i : j);
  }
  return both;
}

double total_seconds(const std::vector<TimeInterval>& intervals) {
  double sum = 0;
  for (const TimeInterval& one : intervals) sum += one.end - one.begin;
  return sum;
}

SpanKind span_kind(const WorkSpan& span) {
  if (span.name.starts_with("wait for ")) return SpanKind::wait;
  if (span.name == "optimizer") return SpanKind::optimizer;
  if (trace_row(span.stream) == "comm") return SpanKind::communication;
  if (span.name == "read" || span.name == "write") return SpanKind::disk;
  if (span.name == "upload" || span.name == "download") return SpanKind::copy;
  return SpanKind::compute;
}

// Stage 0 reduces its buckets by all_reduce; a step agrees by one, too.
SpanKind span_kind(const CollectiveSpan& span) {
  const bool of_bucket = span.label.find("bucket") != std::string::npos;
  if (span.op == Collective::reduce_scatter || span.op == Collective::all_to_all) {
    return SpanKind::reduction;
  }
  if (span.op == Collective::all_reduce && of_bucket) return SpanKind::reduction;
  return span.op == Collective::all_gather ? SpanKind::gather : SpanKind::agreement;
}

// Work of the program encloses its waits.
HiddenParts hidden_parts(const std::vector<LoggedSpan>& spans) {
  const std::vector<TimeInterval> computed = intervals_of(spans, SpanKind::compute);
  const std::vector<TimeInterval> waited = intervals_of(spans, SpanKind::wait);
  const auto part = [&](SpanKind kind) -> std::optional<double> {
    const std::vector<TimeInterval> busy = intervals_of(spans, kind);
    if (busy.empty() || total_seconds(busy) <= 0) return std::nullopt;
    const std::vector<TimeInterval> beside = shared_intervals(busy, computed);
    return (total_seconds(beside) - total_seconds(shared_intervals(beside, waited))) /
           total_seconds(busy);
  };
  return {part(SpanKind::reduction), part(SpanKind::gather)};
}

void SpanLog::open() {
  const std::lock_guard lock(mutex_);
  open_ = true;
}

bool SpanLog::is_open() const {
  const std::lock_guard lock(mutex_);
  return open_;
}

void SpanLog::add(LoggedSpan span) {
  const std::lock_guard lock(mutex_);
  if (!open_) return;
  if (content_.spans.size() < kMaxSpans) {
    content_.spans.push_back(std::move(span));
  } else {
    ++content_.dropped;
  }
}

void SpanLog::add_work(const WorkSpan& span) {
  const std::string_view row = trace_row(span.stream);
  const SpanKind kind = span_kind(span);
  if (kind == SpanKind::wait && span.end_s - span.begin_s < kShownWait) return;
  add({.kind = kind,
       .row = std::string(row),
       .name = std::string(span.name),
       .bytes = span.bytes,
       .begin_s = span.begin_s,
       .end_s = span.end_s});
}

void SpanLog::add_collective(const CollectiveSpan& span) {
  if (std::isnan(span.begin_s)) {
    const std::lock_guard lock(mutex_);
    if (open_) ++content_.untimed;
    return;
  }
  const SpanKind kind = span_kind(span);
  add({.kind = kind,
       .row = std::string(kSpanKinds[static_cast<size_t>(kind)]) + "s",
       .name = std::string(name_of(span.op)),
       .of = span.label,
       .bytes = span.bytes,
       .begin_s = span.begin_s,
       .end_s = span.end_s});
}

SpanLog::Content SpanLog::take() {
  const std::lock_guard lock(mutex_);
  open_ = false;
  return std::exchange(content_, {});
}

std::vector<Subscription> observe_all(Engine& engine, Communicator& comm, const WorkObserver& work,
                                      const CollectiveObserver& collectives) {
  Device& device = engine.device();
  std::vector<Subscription> all = {engine.observe(work), device.observe(work),
                                   comm.observe(collectives)};
  if (!device.is_host()) all.push_back(device.host().observe(work));
  return all;
}

std::string trace_events(const std::vector<LoggedSpan>& spans, int rank, double origin_s) {
  using Json = nlohmann::ordered_json;
  std::vector<std::string> rows(kTraceRows.begin(), kTraceRows.end());
  std::string text;
  const auto write = [&](const Json& event) {
    if (!text.empty()) text += ",\n";
    text += event.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  const auto microseconds = [&](double seconds) {
    return std::round(1e9 * std::max(0.0, seconds - origin_s)) / 1e3;
  };
  const auto name = [&](const char* what, size_t row, const Json& value) {
    write({{"ph", "M"},
           {"name", what},
           {"pid", rank},
           {"tid", row},
           {"args", {{std::string_view(what).ends_with("index") ? "sort_index" : "name", value}}}});
  };
  name("process_name", 0, fmt::format("rank {}", rank));
  name("process_sort_index", 0, rank);
  std::vector<bool> named;
  for (const LoggedSpan& span : spans) {
    const auto row = static_cast<size_t>(std::ranges::find(rows, span.row) - rows.begin());
    if (row == rows.size()) rows.push_back(span.row);
    named.resize(rows.size());
    if (!named[row]) {
      name("thread_name", row, span.row);
      name("thread_sort_index", row, row);
      named[row] = true;
    }
    Json event = {{"ph", "X"},
                  {"name", span.name},
                  {"cat", kSpanKinds[static_cast<size_t>(span.kind)]},
                  {"pid", rank},
                  {"tid", row},
                  {"ts", microseconds(span.begin_s)},
                  {"dur", microseconds(span.end_s) - microseconds(span.begin_s)}};
    if (!span.of.empty()) event["args"]["of"] = span.of;
    if (span.bytes > 0) event["args"]["bytes"] = span.bytes;
    write(event);
  }
  return text;
}

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
    const bool is_short = is_wait && span.end_s - span.begin_s < kShownWait;
    if (kind == SpanKind::communication || is_short) return;
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
