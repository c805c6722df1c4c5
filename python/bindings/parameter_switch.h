#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

#include "python/bindings/engine_handle.h"
#include "zerorun/engine.h"

namespace zerorun {

// The parameters of one module of a stage-3 engine, as PyTorch sees them: views of the full
// parameters from the first acquire to the last release, empty in between. The Parameter objects
// stay the same; only what their `.data` points to changes. The dictionaries that modules read them
// from are of other classes while a call holds them.
class ParameterSwitch {
 public:
  ParameterSwitch(std::shared_ptr<EngineOwner> owner, ModuleId module)
      : owner_(std::move(owner)), module_(module) {}

  // `full` views the parameter's full memory, `empty` has no elements.
  void add(pybind11::object parameter, pybind11::object full, pybind11::object empty) {
    entries_.push_back({std::move(parameter), std::move(full), std::move(empty)});
  }
  void acquire();
  void release();
  bool available() const { return holders_ > 0; }

  // A dictionary with parameters of it, and its class outside of calls, in them, and in those under
  // autocast.
  void add_reader(pybind11::object parameters, pybind11::object watched, pybind11::object plain,
                  pybind11::object cast) {
    readers_.push_back(
        {std::move(parameters), std::move(watched), std::move(plain), std::move(cast)});
  }
  // An acquire by a call, in forward or backward, and its end.
  void enter(bool autocast);
  void leave();
  bool entered() const { return calls_ > 0; }
  // Reads are those under autocast until the calls that hold it have left.
  void cast_reads() { set_class(&Reader::cast); }

  // For Python's garbage collector: parameters refer to their engine, and so to this.
  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  struct Entry {
    pybind11::object parameter;
    pybind11::object full;
    pybind11::object empty;
  };
  struct Reader {
    pybind11::object parameters;
    pybind11::object watched;
    pybind11::object plain;
    pybind11::object cast;
  };
  void set_data(pybind11::object Entry::*values);
  void set_class(pybind11::object Reader::*kind);

  std::shared_ptr<EngineOwner> owner_;
  const ModuleId module_;
  std::vector<Entry> entries_;
  std::vector<Reader> readers_;
  int holders_ = 0;
  int calls_ = 0;  // of the holders
};

}  // namespace zerorun
