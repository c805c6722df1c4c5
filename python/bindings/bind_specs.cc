#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "python/bindings/engine_handle.h"
#include "python/bindings/register.h"
#include "python/bindings/tensor_exchange.h"
#include "zerorun/engine.h"

namespace py = pybind11;
using namespace py::literals;

namespace zerorun {

namespace {

void register_inputs(py::module_& m) {
  m.attr("ELSEWHERE") = kElsewhere;
  py::class_<ParameterSpec>(m, "ParameterSpec", "One parameter of a model.")
      .def(py::init([](std::string name, std::vector<int64_t> shape, std::string module, int group,
                       bool trainable, std::string alias_of) {
             return ParameterSpec{std::move(name), std::move(shape), std::move(module),
                                  group,           trainable,        std::move(alias_of)};
           }),
           "name"_a, "shape"_a, "module"_a, "group"_a = 0, "trainable"_a = true, "alias_of"_a = "")
      .def_readonly("name", &ParameterSpec::name)
      .def_readonly("shape", &ParameterSpec::shape)
      .def_readwrite("module", &ParameterSpec::module)
      .def_readonly("group", &ParameterSpec::group)
      .def_readonly("trainable", &ParameterSpec::trainable)
      .def_readonly("alias_of", &ParameterSpec::alias_of)
      .def_readwrite("use_muon", &ParameterSpec::use_muon)
      .def_readwrite("outputs_are_columns", &ParameterSpec::outputs_are_columns,
                     "A Conv1D's weight, which `muon_heads` cannot divide.")
      .def_readwrite("dtype", &ParameterSpec::dtype,
                     "Of a frozen parameter that is kept bit by bit in a dtype of its own; None: "
                     "the engine's.")
      .def_readwrite("ranks", &ParameterSpec::ranks,
                     "Who has it: 0 all of the engine's ranks, else a group of Engine's `parts`, "
                     "counted from 1; -1 others than this rank.")
      .def_readwrite("counted", &ParameterSpec::counted,
                     "False for a replica of what another part of the model adds to norms.")
      .def_readwrite("divided", &ParameterSpec::divided,
                     "A part of a tensor that is divided among the ranks of Engine's `tensor`.")
      .def_readwrite("replica", &ParameterSpec::replica,
                     "A copy of what a rank before this one in Engine's `tensor` has.");
  py::class_<ParameterGroup>(m, "ParameterGroup", "Hyperparameters that change between steps.")
      .def(py::init<>())
      .def_readwrite("name", &ParameterGroup::name)
      .def_readwrite("lr", &ParameterGroup::lr)
      .def_readwrite("weight_decay", &ParameterGroup::weight_decay)
      .def_readwrite("beta1", &ParameterGroup::beta1)
      .def_readwrite("beta2", &ParameterGroup::beta2)
      .def_readwrite("eps", &ParameterGroup::eps);
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

}  // namespace

void register_specs(py::module_& m) {
  register_inputs(m);
  register_results(m);
}

}  // namespace zerorun
