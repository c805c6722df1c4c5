#include <pybind11/stl.h>

#include <memory>
#include <span>
#include <vector>

#include "python/bindings/owned_interval.h"
#include "python/bindings/register.h"
#include "python/bindings/tensor_exchange.h"
#include "zerorun/engine.h"

namespace py = pybind11;

namespace zerorun {

std::vector<OwnedInterval> own(std::span<const StateInterval> intervals,
                               const std::shared_ptr<EngineOwner>& owner) {
  std::vector<OwnedInterval> result;
  for (const StateInterval& interval : intervals) result.push_back({interval, owner});
  return result;
}

void register_results(py::module_& m) {
  py::class_<StepResult>(m, "StepResult", "What one optimizer step did.")
      .def_readonly("applied", &StepResult::applied)
      .def_readonly("had_gradient", &StepResult::had_gradient)
      .def_readonly("grad_norm", &StepResult::grad_norm)
      .def_readonly("clip_factor", &StepResult::clip_factor)
      .def_readonly("loss_scale", &StepResult::loss_scale);
  py::class_<OwnedInterval>(
      m, "StateInterval",
      "A part of one parameter that this rank holds; tensors are flat DLPack capsules.")
      .def_property_readonly("parameter",
                             [](const OwnedInterval& self) { return self.interval.parameter; })
      .def_property_readonly("begin", [](const OwnedInterval& self) { return self.interval.begin; })
      .def_property_readonly("numel", [](const OwnedInterval& self) { return self.interval.numel; })
      .def_property_readonly(
          "owned", [](const OwnedInterval& self) { return self.interval.owned; },
          "False on all but one of the ranks that hold it (shard groups).")
      .def_property_readonly("param",
                             [](const OwnedInterval& self) {
                               return export_view(self.interval.param, self.owner,
                                                  self.where_param());
                             })
      .def_property_readonly(
          "master", [](const OwnedInterval& self) { return self.export_if(self.interval.master); })
      .def_property_readonly(
          "grad", [](const OwnedInterval& self) { return self.export_if(self.interval.grad); })
      .def_property_readonly("states", [](const OwnedInterval& self) {
        std::vector<py::capsule> states;
        for (const TensorView& state : self.interval.states) {
          states.push_back(export_view(state, self.owner, self.where()));
        }
        return states;
      });
}

}  // namespace zerorun
