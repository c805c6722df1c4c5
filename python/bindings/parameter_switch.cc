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

int ParameterSwitch::traverse(visitproc visit, void* arg) const {
  for (const Entry& entry : entries_) {
    Py_VISIT(entry.parameter.ptr());
    Py_VISIT(entry.full.ptr());
    Py_VISIT(entry.empty.ptr());
  }
  return 0;
}

void ParameterSwitch::clear() {
  const std::vector<Entry> dropped = std::move(entries_);  // what they run may come back here
  entries_.clear();
}

namespace {

// Null while the object is being made or ended.
ParameterSwitch* switch_of(PyObject* self) {
  const auto place = reinterpret_cast<py::detail::instance*>(self)->get_value_and_holder();
  return place.holder_constructed() ? place.value_ptr<ParameterSwitch>() : nullptr;
}

int traverse_switch(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  const ParameterSwitch* const own = switch_of(self);
  return own == nullptr ? 0 : own->traverse(visit, arg);
}

int clear_switch(PyObject* self) {
  if (ParameterSwitch* const own = switch_of(self)) own->clear();
  return 0;
}

void let_collector_in(PyHeapTypeObject* heap) {
  PyTypeObject& type = heap->ht_type;
  type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  type.tp_traverse = traverse_switch;
  type.tp_clear = clear_switch;
}

}  // namespace

void register_parameter_switch(py::module_& m) {
  py::class_<ParameterSwitch>(
      m, "ParameterSwitch",
      "One module's parameters at stage 3: full between acquire and release, else empty.",
      py::custom_type_setup(let_collector_in))
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
