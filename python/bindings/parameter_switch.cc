#include "python/bindings/parameter_switch.h"

#include <string>

#include "core/check.h"
#include "python/bindings/register.h"

namespace py = pybind11;
using namespace py::literals;

namespace zerorun {

void ParameterSwitch::acquire() {
  if (holders_ == 0) {
    {
      Engine& engine = owner_->enter();
      const py::gil_scoped_release release;
      engine.gather(module_);
    }
    for (const Entry& entry : entries_) entry.parameter.attr("data") = entry.full;
  }
  ++holders_;  // after all that can fail
}

void ParameterSwitch::release() {
  ZR_CHECK(holders_ > 0, "module {} released more often than acquired", module_);
  if (--holders_ > 0) return;
  for (const Entry& entry : entries_) entry.parameter.attr("data") = entry.empty;
  Engine& engine = owner_->enter();
  const py::gil_scoped_release release;
  engine.release(module_);
}

void register_parameter_switch(py::module_& m) {
  py::class_<ParameterSwitch>(
      m, "ParameterSwitch",
      "One module's parameters at stage 3: full between acquire and release, else empty.")
      .def(py::init([](const EngineHandle& engine, const std::string& module) {
             return std::make_unique<ParameterSwitch>(engine.owner(),
                                                      engine.engine().module_id(module));
           }),
           "engine"_a, "module"_a)
      .def("add", &ParameterSwitch::add, "parameter"_a, "full"_a, "empty"_a,
           "A parameter with the two values of its `.data`.")
      .def("acquire", &ParameterSwitch::acquire, "Makes the parameters full; nested calls count.")
      .def("release", &ParameterSwitch::release, "Ends one acquire.")
      .def_property_readonly("available", &ParameterSwitch::available);
}

}  // namespace zerorun
