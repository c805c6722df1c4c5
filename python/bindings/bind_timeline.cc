#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "python/bindings/engine_handle.h"
#include "python/bindings/register.h"
#include "zerorun/timeline.h"

namespace py = pybind11;
using namespace py::literals;

namespace zerorun {

namespace {

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
