#pragma once

#include <pybind11/pybind11.h>

#include <exception>

#include "python/bindings/engine_handle.h"

namespace zerorun {

// Full parameters lie in memory of Python's: `acquire(bucket)` returns its address, or raises an
// `out_of_memory`, and `release(bucket)` is called when nobody needs it any more.
void use_full_memory(const EngineHandle& self, pybind11::object acquire, pybind11::object release,
                     pybind11::object out_of_memory);

// For pybind11: what `acquire` raised arrives as it was.
void translate_out_of_memory(std::exception_ptr thrown);

}  // namespace zerorun
