#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "zerorun/communicator.h"

namespace zerorun {

// One function per domain; each adds its names to the module zerorun._C.
void register_errors(pybind11::module_& m);
void register_config(pybind11::module_& m);
void register_communicator(pybind11::module_& m);
void register_engine(pybind11::module_& m);
void register_gradient_collector(pybind11::module_& m);
void register_lr_schedule(pybind11::module_& m);
void register_parameter_switch(pybind11::module_& m);
void register_checkpoint(pybind11::module_& m);

// What a _C.Communicator stands for.
std::shared_ptr<Communicator> communicator_of(const pybind11::object& communicator);

}  // namespace zerorun
