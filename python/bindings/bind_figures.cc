#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/collective_limits.h"
#include "python/bindings/engine_handle.h"
#include "python/bindings/register.h"
#include "zero/memory_plan.h"
#include "zero/timeline/span_log.h"
#include "zerorun/communicator.h"
#include "zerorun/device.h"
#include "zerorun/engine.h"
#include "zerorun/timeline.h"

namespace py = pybind11;
using namespace py::literals;

namespace zerorun {

namespace {

// The collectives that ran since somebody last asked: a bounded list that streams add to.
class CollectiveLog {
 public:
  // Collectives that are kept; what comes on top is only counted.
  static constexpr size_t kMax = 1 << 16;

  void add(const CollectiveSpan& span) {
    const std::lock_guard lock(mutex_);
    if (spans_.size() < kMax) {
      spans_.push_back(span);
    } else {
      ++dropped_;
    }
  }
  // And how many were dropped.
  std::pair<std::vector<CollectiveSpan>, int64_t> take() {
    const std::lock_guard lock(mutex_);
    return {std::exchange(spans_, {}), std::exchange(dropped_, 0)};
  }

 private:
  std::mutex mutex_;
  std::vector<CollectiveSpan> spans_;
  int64_t dropped_ = 0;
};

// An engine's work and memory in numbers. It does not keep the engine.
class EngineFigures {
 public:
  explicit EngineFigures(const EngineHandle& engine) : owner_(engine.owner()) {}

  std::tuple<double, double, double> take_timings() const {
    const EngineTimings spent = owner()->engine->take_timings();
    return {spent.reduce_s, spent.gather_s, spent.optimizer_s};
  }

  void measure_work() {
    const auto held = owner();
    work_.emplace(*held->engine, *held->job);
  }
  std::map<std::string, std::pair<double, double>> take_work() {
    std::map<std::string, std::pair<double, double>> times;
    if (!work_) return times;
    const StepWork work = work_->take();
    const auto add = [&](const char* name, const std::optional<SplitSeconds>& split) {
      if (split && split->any()) times.emplace(name, std::pair(split->exposed, split->hidden));
    };
    add("reduce", work.reductions);
    add("gather", work.gathers);
    add("offload", work.offload);
    return times;
  }

  // After destroy() there are no parts.
  int enter(int part) {
    const auto kept = owner_.lock();
    return kept ? static_cast<int>(kept->engine->enter(static_cast<StepPart>(part))) : part;
  }
  py::typing::Dict<std::string, py::object> stragglers() const {
    const StragglerReport report = owner()->engine->stragglers();
    py::dict shares("waited"_a = report.own.waited);
    for (int part = 0; part < kStepParts; ++part) {
      const auto name = name_of(static_cast<StepPart>(part));
      shares[py::str(name.data(), name.size())] = report.own.parts[static_cast<size_t>(part)];
    }
    py::typing::Dict<std::string, py::object> found("step_shares"_a = shares);
    if (const auto& slow = report.found) {
      found["straggler"] =
          py::dict("rank"_a = slow->rank, "host"_a = slow->host, "share"_a = slow->share,
                   "cause"_a = name_of(slow->cause), "text"_a = slow->text());
    }
    return found;
  }

  std::map<std::string, std::tuple<int64_t, int64_t, double>> collectives() const {
    const CommStats stats = owner()->job->stats();
    const auto seconds = work_ ? work_->collective_seconds() : std::array<double, kCollectives>{};
    std::map<std::string, std::tuple<int64_t, int64_t, double>> counts;
    for (int i = 0; i < kCollectives; ++i) {
      const auto op = static_cast<Collective>(i);
      if (stats[op].calls == 0) continue;
      counts.emplace(name_of(op),
                     std::tuple(stats[op].calls, stats[op].bytes, seconds[static_cast<size_t>(i)]));
    }
    return counts;
  }
  std::map<std::string, double> collective_limits() const {
    const auto held = owner();
    const WithoutGil unlocked;
    const auto measured = measure_collectives(*held->job, *held->device);
    std::map<std::string, double> limits;
    for (int i = 0; i < kCollectives; ++i) {
      const double limit = measured[static_cast<size_t>(i)];
      if (limit > 0.0) limits.emplace(name_of(static_cast<Collective>(i)), limit);
    }
    return limits;
  }
  std::map<std::string, int64_t> memory_plan() const {
    const auto held = owner();
    const Communicator& comm = *held->comm;
    const HostLayout layout{comm.world_size(), comm.local_world_size(), held->device->is_host()};
    const auto planned =
        plan_memory(held->config, held->engine->parameters(), layout).by_category();
    std::map<std::string, int64_t> plan;
    for (int i = 0; i < kMemoryCategories; ++i) {
      const int64_t nbytes = planned[static_cast<size_t>(i)];
      if (nbytes > 0) plan.emplace(name_of(static_cast<MemoryCategory>(i)), nbytes);
    }
    return plan;
  }

  std::map<std::string, std::pair<int64_t, int64_t>> memory() const {
    std::map<std::string, std::pair<int64_t, int64_t>> use;
    const auto held = owner();
    for (int i = 0; i < kMemoryCategories; ++i) {
      const auto category = static_cast<MemoryCategory>(i);
      const MemoryUse of = held->device->memory_use(category);
      if (of.peak_bytes > 0)
        use.emplace(name_of(category), std::pair(of.live_bytes, of.peak_bytes));
    }
    return use;
  }

  void record_collectives() {
    recording_ =
        owner()->job->observe([log = log_](const CollectiveSpan& span) { log->add(span); });
  }

  std::pair<std::vector<std::tuple<std::string, std::string, int64_t, double, double>>, int64_t>
  take_collectives() {
    const auto [spans, dropped] = log_->take();
    std::vector<std::tuple<std::string, std::string, int64_t, double, double>> rows;
    rows.reserve(spans.size());
    for (const CollectiveSpan& span : spans) {
      rows.emplace_back(name_of(span.op), span.label, span.bytes, span.begin_s, span.end_s);
    }
    return {std::move(rows), dropped};
  }

 private:
  std::shared_ptr<EngineOwner> owner() const {
    if (auto kept = owner_.lock()) return kept;
    throw ConfigError("the figures of an engine are asked for after its destroy()");
  }

  std::weak_ptr<EngineOwner> owner_;
  std::shared_ptr<CollectiveLog> log_ = std::make_shared<CollectiveLog>();
  Subscription recording_;
  std::optional<WorkMeter> work_;
};

// A timeline of an engine's, which it does not keep.
class PyTimeline {
 public:
  PyTimeline(const EngineHandle& engine, std::string file, int64_t first_step, int64_t last_step)
      : owner_(engine.owner()) {
    EngineOwner& owner = *engine.owner();
    owner.enter();
    const py::gil_scoped_release release;
    timeline_ = Timeline::create(
        *owner.engine, *owner.job,
        {.file = std::move(file), .first_step = first_step, .last_step = last_step}, 0);
  }

  bool is_recording() const { return timeline_->is_recording(); }
  void add(const std::string& name, double begin, double end) {
    timeline_->add(name, "", begin, end);
  }
  std::string end_step(int64_t step) {
    const auto kept = owner_.lock();
    if (kept == nullptr) throw ConfigError("the timeline of an engine is used after its destroy()");
    kept->enter();
    const py::gil_scoped_release release;
    return timeline_->end_step(step);
  }

 private:
  std::weak_ptr<EngineOwner> owner_;
  std::unique_ptr<Timeline> timeline_;
};

}  // namespace

void register_figures(py::module_& m) {
  py::class_<EngineFigures>(m, "EngineFigures", "What an engine did and holds, in numbers.")
      .def(py::init<const EngineHandle&>(), "engine"_a)
      .def("take_timings", &EngineFigures::take_timings,
           "Seconds since the last call: (doing or waiting for reductions, for gathers, norm and "
           "update).")
      .def("enter", &EngineFigures::enter, "part"_a,
           "Time from now on is of this part of a step: 0 computation, 1 data, 2 copies, 3 saves. "
           "Returns the part of the time before.")
      .def("stragglers", &EngineFigures::stragglers,
           "{step_shares: fractions of this rank's last step; straggler: of rank 0, where there is "
           "one}.")
      .def("collectives", &EngineFigures::collectives,
           "{operation: (calls, bytes of the full tensors, seconds)} since the engine was made; "
           "seconds since measure_work(), not a number on a GPU's stream.")
      .def("measure_work", &EngineFigures::measure_work,
           "From now on the engine's streams are observed, for take_work().")
      .def("take_work", &EngineFigures::take_work,
           "{what: (seconds in which the program waited, others)} since the last call, of reduce, "
           "gather and offload; those that took no time or are not known are left out.")
      .def("collective_limits", &EngineFigures::collective_limits,
           "{operation: bytes of the full tensor per second that large collectives reach}, "
           "measured. Collective.")
      .def("memory_plan", &EngineFigures::memory_plan,
           "{category of the ledger: bytes that the engine is planned to hold}.")
      .def("memory", &EngineFigures::memory,
           "{category of the ledger: (bytes now, most bytes so far)}, without those never used.")
      .def("record_collectives", &EngineFigures::record_collectives,
           "From now on every collective is kept for take_collectives().")
      .def("take_collectives", &EngineFigures::take_collectives,
           "([(operation, label, bytes, begin, end), ...], number of those dropped for want of "
           "room) since the last call; seconds of time.perf_counter(), not a number on a GPU's "
           "stream.");
}

void register_timeline(py::module_& m) {
  py::class_<PyTimeline>(m, "Timeline",
                         "What every rank computed and communicated in some steps, and when.")
      .def(py::init<const EngineHandle&, std::string, int64_t, int64_t>(), "engine"_a, "file"_a,
           "first_step"_a, "last_step"_a,
           "Rank 0 writes the file after the last of the steps, which count from 1.")
      .def_property_readonly("is_recording", &PyTimeline::is_recording)
      .def("add", &PyTimeline::add, "name"_a, "begin"_a, "end"_a,
           "Work of the program's own; seconds of time.perf_counter(). Ignored unless it records.")
      .def("end_step", &PyTimeline::end_step, "step"_a,
           "After each step. Returns a line about the file where it was written, else ''. The "
           "last of them is collective.");
}

}  // namespace zerorun
