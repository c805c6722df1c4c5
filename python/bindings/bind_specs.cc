#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "python/bindings/register.h"
#include "zerorun/engine.h"

namespace py = pybind11;
using namespace py::literals;

namespace zerorun {

void register_specs(py::module_& m) {
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
      .def_property(
          "dtype",
          [](const ParameterSpec& self) -> std::optional<std::string> {
            if (!self.dtype) return std::nullopt;
            return std::string(name_of(*self.dtype));
          },
          [](ParameterSpec& self, const std::optional<std::string>& dtype) {
            self.dtype.reset();
            if (dtype) self.dtype = parse_dtype(*dtype);
          },
          "Of a frozen parameter that is kept bit by bit in a dtype of its own; None: the "
          "engine's.")
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

}  // namespace zerorun
