#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "python/bindings/gpu.h"
#include "zerorun/communicator.h"
#include "zerorun/dtype.h"

namespace pybind11::detail {

// A dtype is its name.
template <>
struct type_caster<zerorun::DType> {
  PYBIND11_TYPE_CASTER(zerorun::DType, const_name("str"));
  bool load(handle text, bool convert) {
    make_caster<std::string> spelling;
    if (!spelling.load(text, convert)) return false;
    value = zerorun::parse_dtype(cast_op<const std::string&>(spelling));
    return true;
  }
  static handle cast(zerorun::DType dtype, return_value_policy /*policy*/, handle /*parent*/) {
    const std::string_view own = zerorun::name_of(dtype);
    return str(own.data(), own.size()).release();
  }
};

}  // namespace pybind11::detail

namespace zerorun {

// One function per domain; each adds its names to the module zerorun._C.
void register_config(pybind11::module_& m);
void register_communicator(pybind11::module_& m);
void register_engine(pybind11::module_& m);
void register_figures(pybind11::module_& m);
void register_gpu(pybind11::module_& m);
void register_gradient_collector(pybind11::module_& m);
void register_lr_schedule(pybind11::module_& m);
void register_full_memory(pybind11::module_& m);
void register_parameter_switch(pybind11::module_& m);
void register_specs(pybind11::module_& m);
void register_timeline(pybind11::module_& m);
void register_checkpoint(pybind11::module_& m);

// The part of a _C.Communicator that engines use.
struct EngineBase {
  std::shared_ptr<Communicator> comm;
  std::shared_ptr<Gpu> gpu;  // whose memory it works in; null: the CPU's
};
EngineBase engine_base_of(const pybind11::object& communicator);

// Full parameters lie in memory of Python's: `acquire(bucket)` returns its address, or raises an
// `out_of_memory`, and `release(bucket)` is called when nobody needs it any more.
class EngineHandle;
void use_full_memory(const EngineHandle& self, pybind11::object acquire, pybind11::object release,
                     pybind11::object out_of_memory);

}  // namespace zerorun
