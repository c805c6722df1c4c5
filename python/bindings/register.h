#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "python/bindings/gpu.h"
#include "zerorun/communicator.h"

namespace zerorun {

// One function per domain; each adds its names to the module zerorun._C.
void register_errors(pybind11::module_& m);
void register_config(pybind11::module_& m);
void register_communicator(pybind11::module_& m);
void register_engine(pybind11::module_& m);
void register_figures(pybind11::module_& m);
void register_gpu(pybind11::module_& m);
void register_gradient_collector(pybind11::module_& m);
void register_lr_schedule(pybind11::module_& m);
void register_page_pool(pybind11::module_& m);
void register_parameter_switch(pybind11::module_& m);
void register_results(pybind11::module_& m);
void register_specs(pybind11::module_& m);
void register_timeline(pybind11::module_& m);
void register_checkpoint(pybind11::module_& m);

// The part of a _C.Communicator that engines use.
struct EngineBase {
  std::shared_ptr<Communicator> comm;
  std::shared_ptr<Gpu> gpu;  // whose memory it works in; null: the CPU's
};
EngineBase engine_base_of(const pybind11::object& communicator);

}  // namespace zerorun
