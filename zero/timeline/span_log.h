#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/observers.h"
#include "zerorun/communicator.h"
#include "zerorun/engine.h"
#include "zerorun/work_span.h"

namespace zerorun {

// An interval of time, in seconds.
struct TimeInterval {
  double begin = 0;
  double end = 0;
};

// Merges intervals that may overlap into disjoint ones, in ascending order.
std::vector<TimeInterval> joined_intervals(std::vector<TimeInterval> all);
// The intersection of two lists of intervals, each of which is disjoint and ascending.
std::vector<TimeInterval> shared_intervals(const std::vector<TimeInterval>& a,
                                           const std::vector<TimeInterval>& b);
double total_seconds(const std::vector<TimeInterval>& intervals);

enum class SpanKind : uint8_t {
  step,           // a whole optimizer step
  compute,        // of the model, and kernels
  wait,           // of the program, for reductions or gathers
  optimizer,      // the program in the engine's step
  reduction,      // of gradients
  gather,         // of parameters
  agreement,      // any other collective
  communication,  // kernels that prepare a collective
  copy,           // between host and device
  disk,
};

SpanKind span_kind(const WorkSpan& span);
SpanKind span_kind(const CollectiveSpan& span);

// One entry of a timeline: work of a rank between two moments. Times are in seconds
// (steady_seconds()).
struct LoggedSpan {
  SpanKind kind = SpanKind::compute;
  std::string row;
  std::string name;
  std::string of;
  int64_t bytes = 0;
  double begin_s = 0;
  double end_s = 0;
};

// The fractions, 0 to 1, of a rank's communication that overlap with computation; nullopt if there
// is none.
struct HiddenParts {
  std::optional<double> reductions;
  std::optional<double> gathers;
};
HiddenParts hidden_parts(const std::vector<LoggedSpan>& spans);

// Collects the spans that a rank's observers report while the log is open. Any thread may add
// spans.
class SpanLog {
 public:
  static constexpr size_t kMaxSpans = 50'000;  // about 8 MB of the file

  void open();
  bool is_open() const;

  void add(LoggedSpan span);
  void add_work(const WorkSpan& span);
  void add_collective(const CollectiveSpan& span);

  struct Content {
    std::vector<LoggedSpan> spans;
    int64_t dropped = 0;  // spans beyond kMaxSpans
    int64_t untimed = 0;  // collectives on a GPU's stream
  };
  // Closes the log and returns its content.
  Content take();

 private:
  mutable std::mutex mutex_;
  bool open_ = false;
  Content content_;
};

// Subscribes to all work of an engine: in its calls, on its streams, on those of its host if that
// is apart, and of its collectives.
std::vector<Subscription> observe_all(Engine& engine, Communicator& comm, const WorkObserver& work,
                                      const CollectiveObserver& collectives);

// Encodes spans as events of Chrome's trace format, separated by commas. Times count from
// `origin_s`; spans that began earlier are cut there.
std::string trace_events(const std::vector<LoggedSpan>& spans, int rank, double origin_s);

// Seconds of one kind of work on all streams; overlapping work counts once. Exposed: the program
// waited meanwhile or was in the engine's step. Hidden: all other time.
struct SplitSeconds {
  double exposed = 0;
  double hidden = 0;

  bool any() const { return exposed + hidden > 0; }
};

// The work of a step. A value is unset if it is unknown, because the work ran on a GPU's stream or
// had too many parts to record.
struct StepWork {
  std::optional<SplitSeconds> reductions;
  std::optional<SplitSeconds> gathers;
  std::optional<SplitSeconds> offload;  // updates on the host, copies from and to it, disk
};

// Measures the work on an engine's streams, from the construction of the meter on.
class WorkMeter {
 public:
  WorkMeter(Engine& engine, Communicator& comm);

  // The work since the last call.
  StepWork take();
  // Seconds of all collectives so far, by operation; NaN if one ran on a GPU's stream.
  std::array<double, kCollectives> collective_seconds() const;

 private:
  struct Log;
  std::shared_ptr<Log> log_;
  std::vector<Subscription> subscriptions_;
};

// The seconds that the engine's caller has spent in one kind of the engine's work.
struct Timer {
  std::string_view name;
  Observers<WorkSpan>& observers;  // informed of each run of the timer
  double seconds = 0.0;
};

// The timers from which EngineTimings are made.
struct Timers {
  Observers<WorkSpan> observers;
  Timer reduce_s{"wait for reductions", observers};
  Timer gather_s{"wait for gathers", observers};
  Timer optimizer_s{"optimizer", observers};

  EngineTimings take() {
    return {std::exchange(reduce_s.seconds, 0.0), std::exchange(gather_s.seconds, 0.0),
            std::exchange(optimizer_s.seconds, 0.0)};
  }
};

// Adds the time from its construction to its destruction to a timer.
class Stopwatch {
 public:
  explicit Stopwatch(Timer& timer) : timer_(timer) {}
  ~Stopwatch() {
    const double end = steady_seconds();
    timer_.seconds += end - begin_;
    if (!timer_.observers.any()) return;
    timer_.observers.notify({kProgramStream, timer_.name, 0, begin_, end});
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  Timer& timer_;
  const double begin_ = steady_seconds();
};

}  // namespace zerorun
