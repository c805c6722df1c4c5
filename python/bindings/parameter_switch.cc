#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "python/bindings/engine_handle.h"
#include "python/bindings/register.h"

namespace py = pybind11;
using namespace py::literals;

namespace zerorun {

namespace {

// A string object that Python has once, so that look-ups by it neither hash nor compare it.
py::handle interned(const char* name) { return PyUnicode_InternFromString(name); }

// The parameters of one module of a stage-3 engine, as PyTorch sees them: views of the full
// parameters from the first acquire to the last release, empty in between. The Parameter objects
// stay the same; only what their `.data` points to changes. The dictionaries that modules read them
// from are of other classes while a call holds them.
class ParameterSwitch {
 public:
  ParameterSwitch(std::shared_ptr<EngineOwner> owner, ModuleId module)
      : owner_(std::move(owner)), module_(module) {}

  void add(py::object parameter, py::object full, py::object empty, std::string name) {
    entries_.push_back({std::move(parameter), std::move(full), std::move(empty), std::move(name)});
  }
  void acquire() {
    if (holders_ == 0) {
      prefetch();
      {
        Engine& engine = owner_->enter();
        const py::gil_scoped_release release;
        engine.gather(module_);
      }
      set_data(&Entry::full);
    }
    ++holders_;  // after all that can fail
  }

  void release() {
    ZR_CHECK(holders_ > 0, "module {} released more often than acquired", module_);
    if (--holders_ > 0) return;
    set_data(&Entry::empty);
    Engine& engine = owner_->enter();
    const py::gil_scoped_release release;
    engine.release(module_);
  }

  bool available() const { return holders_ > 0; }

  void add_reader(py::object parameters, py::object watched, py::object plain, py::object cast) {
    readers_.push_back(
        {std::move(parameters), std::move(watched), std::move(plain), std::move(cast)});
  }
  void enter(bool autocast) {
    acquire();
    ++calls_;
    if (autocast) {
      cast_reads();
    } else if (calls_ == 1) {
      set_class(&Reader::plain);
    }
  }

  void leave() {
    if (--calls_ == 0) set_class(&Reader::watched);
    const std::string replaced = holders_ == 1 ? find_replaced() : "";
    release();
    if (!replaced.empty()) {
      fail<ConfigError>(
          "parameter {}: its .data was replaced in a call of its module, after which it is empty: "
          "raise stage3_param_persistence_threshold to its number of elements, or lower the stage",
          replaced);
    }
  }

  bool entered() const { return calls_ > 0; }
  void cast_reads() { set_class(&Reader::cast); }

  // For Python's garbage collector: parameters refer to their engine, and so to this.
  int traverse(visitproc visit, void* arg) const {
    for (const Entry& entry : entries_) {
      Py_VISIT(entry.parameter.ptr());
      Py_VISIT(entry.full.ptr());
      Py_VISIT(entry.empty.ptr());
    }
    for (const Reader& reader : readers_) Py_VISIT(reader.parameters.ptr());
    return 0;
  }

  void clear() {
    // What they run may come back here.
    const std::vector<Entry> entries = std::exchange(entries_, {});
    const std::vector<Reader> readers = std::exchange(readers_, {});
  }

 private:
  struct Entry {
    py::object parameter;
    py::object full;
    py::object empty;
    std::string name;
  };
  struct Reader {
    py::object parameters;
    py::object watched;
    py::object plain;
    py::object cast;
  };
  // Another unit's tensors have been in use since the last call, so the first access to each of
  // this one's would miss the cache, one after the other. Tensor objects refer to their data in one
  // of the two words after Python's header; an address that is none does no harm.
  void prefetch() const {
    constexpr ptrdiff_t kLine = 64;
    for (const Entry& entry : entries_) {
      __builtin_prefetch(entry.parameter.ptr());
      __builtin_prefetch(entry.full.ptr());
    }
    for (const Entry& entry : entries_) {
      for (const py::handle tensor : {entry.parameter, entry.full}) {
        const auto* const words = reinterpret_cast<const char* const*>(tensor.ptr() + 1);
        for (ptrdiff_t line = 0; line < 4; ++line) {
          __builtin_prefetch(words[0] + line * kLine);
          __builtin_prefetch(words[1] + line * kLine);
        }
      }
    }
  }

  void set_data(py::object Entry::*values) {
    static const py::handle name = interned("data");
    for (const Entry& entry : entries_) py::setattr(entry.parameter, name, entry.*values);
  }

  // The name of a parameter that views other memory than the engine's. The first calls look at all,
  // later ones at one each, so that they do not pay for all.
  std::string find_replaced() {
    constexpr size_t kThorough = 8;
    static const py::handle name = interned("data_ptr");
    const size_t all = entries_.size();
    const size_t looked_at = checks_ < kThorough ? all : std::min<size_t>(1, all);
    for (size_t i = 0; i < looked_at; ++i) {
      const Entry& entry = entries_[(checks_ + i) % all];
      if (!entry.parameter.attr(name)().equal(entry.full.attr(name)())) return entry.name;
    }
    ++checks_;
    return "";
  }

  void set_class(py::object Reader::*kind) {
    static const py::handle name = interned("__class__");
    for (const Reader& reader : readers_) py::setattr(reader.parameters, name, reader.*kind);
  }

  std::shared_ptr<EngineOwner> owner_;
  const ModuleId module_;
  std::vector<Entry> entries_;
  std::vector<Reader> readers_;
  int holders_ = 0;
  int calls_ = 0;  // of the holders
  size_t checks_ = 0;
};

// Null while the object is being made or ended. pybind11 3.1 sets an object's layout after it has
// allocated others for the first one of a subclass, where Python before 3.12 may collect.
ParameterSwitch* switch_of(PyObject* self) {
  auto* const instance = reinterpret_cast<py::detail::instance*>(self);
  if (!instance->simple_layout && instance->nonsimple.values_and_holders == nullptr) return nullptr;
  const auto place = instance->get_value_and_holder();
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
      .def("add", &ParameterSwitch::add, "parameter"_a, "full"_a, "empty"_a, "name"_a,
           "A parameter with the two values of its `.data`.")
      .def("acquire", &ParameterSwitch::acquire, "Makes the parameters full; nested calls count.")
      .def("release", &ParameterSwitch::release, "Ends one acquire.")
      .def_property_readonly("available", &ParameterSwitch::available)
      .def("add_reader", &ParameterSwitch::add_reader, "parameters"_a, "watched"_a, "plain"_a,
           "cast"_a,
           "A dictionary with parameters of it, and its class outside of calls, in them, and in "
           "those under autocast.")
      .def("enter", &ParameterSwitch::enter, "autocast"_a,
           "An acquire by a call, in forward or backward.")
      .def("leave", &ParameterSwitch::leave,
           "Ends one enter; ConfigError if the program has replaced a parameter's `.data`.")
      .def_property_readonly("entered", &ParameterSwitch::entered, "A call holds it.")
      .def("cast_reads", &ParameterSwitch::cast_reads,
           "Reads are those under autocast until the calls that hold it have left.");
}

}  // namespace zerorun
