#include <pybind11/stl.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/bindings/collective_log.h"
#include "python/bindings/engine_handle.h"
#include "python/bindings/register.h"
#include "zerorun/communicator.h"
#include "zerorun/device.h"
#include "zerorun/engine.h"

namespace py = pybind11;
using namespace py::literals;

namespace zerorun {

namespace {

// An engine's work and memory in numbers. It does not keep the engine.
class EngineFigures {
 public:
  explicit EngineFigures(const EngineHandle& engine) : owner_(engine.owner()) {}

  std::tuple<double, double, double> take_timings() const {
    const EngineTimings spent = owner()->engine->take_timings();
    return {spent.reduce_s, spent.gather_s, spent.optimizer_s};
  }

  std::map<std::string, std::pair<int64_t, int64_t>> collectives() const {
    const CommStats stats = owner()->job->stats();
    std::map<std::string, std::pair<int64_t, int64_t>> counts;
    for (int i = 0; i < kCollectives; ++i) {
      const auto op = static_cast<Collective>(i);
      if (stats[op].calls > 0) {
        counts.emplace(name_of(op), std::pair(stats[op].calls, stats[op].bytes));
      }
    }
    return counts;
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
};

}  // namespace

void register_figures(py::module_& m) {
  py::class_<EngineFigures>(m, "EngineFigures", "What an engine did and holds, in numbers.")
      .def(py::init<const EngineHandle&>(), "engine"_a)
      .def("take_timings", &EngineFigures::take_timings,
           "Seconds since the last call: (doing or waiting for reductions, for gathers, norm and "
           "update).")
      .def("collectives", &EngineFigures::collectives,
           "{operation: (calls, bytes of the full tensors)} since the engine was made.")
      .def("memory", &EngineFigures::memory,
           "{category of the ledger: (bytes now, most bytes so far)}, without those never used.")
      .def("record_collectives", &EngineFigures::record_collectives,
           "From now on every collective is kept for take_collectives().")
      .def("take_collectives", &EngineFigures::take_collectives,
           "([(operation, label, bytes, begin, end), ...], number of those dropped for want of "
           "room) since the last call; seconds of time.perf_counter(), not a number on a GPU's "
           "stream.");
}

}  // namespace zerorun
