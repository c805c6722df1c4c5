#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

#include "python/bindings/engine_handle.h"
#include "zerorun/engine.h"

namespace zerorun {

// The parameters of one module of a stage-3 engine, as PyTorch sees them: views of the full
// parameters from the first acquire to the last release, empty in between. The Parameter objects
// stay the same; only what their `.data` points to changes.
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

  // For Python's garbage collector: parameters refer to their engine, and so to this.
  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  struct Entry {
    pybind11::object parameter;
    pybind11::object full;
    pybind11::object empty;
  };

  std::shared_ptr<EngineOwner> owner_;
  const ModuleId module_;
  std::vector<Entry> entries_;
  int holders_ = 0;
};

}  // namespace zerorun
