#pragma once

#include <pybind11/pybind11.h>

namespace zerorun {

// One function per domain; each adds its names to the module zerorun._C.
void register_errors(pybind11::module_& m);
void register_config(pybind11::module_& m);

}  // namespace zerorun
