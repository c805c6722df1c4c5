#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "python/bindings/engine_handle.h"
#include "python/bindings/register.h"
#include "zerorun/checkpoint.h"

namespace py = pybind11;
using namespace py::literals;

namespace zerorun {

void register_checkpoint(py::module_& m) {
  const py::call_guard<py::gil_scoped_release> unlocked;
  py::class_<LoadedCheckpoint>(m, "LoadedCheckpoint", "What was loaded besides the model.")
      .def_readonly("tag", &LoadedCheckpoint::tag)
      .def_readonly("client_state", &LoadedCheckpoint::client_state)
      .def_readonly("step", &LoadedCheckpoint::step);
  m.def(
      "save_checkpoint",
      [](const EngineHandle& engine, const std::string& directory, const std::string& tag,
         const std::string& client_state) {
        save_checkpoint(engine.engine(), *engine.owner()->comm, {directory, tag, client_state});
      },
      unlocked, "engine"_a, "directory"_a, "tag"_a, "client_state"_a = "{}",
      "Collective. An earlier checkpoint stays loadable until this one is complete.");
  m.def(
      "load_checkpoint",
      [](const EngineHandle& engine, const std::string& directory, const std::string& tag) {
        return load_checkpoint(engine.engine(), *engine.owner()->comm, directory, tag);
      },
      unlocked, "engine"_a, "directory"_a, "tag"_a = "",
      "Collective. Any world size and stage may load what any other saved.");
  m.def(
      "export_safetensors",
      [](const EngineHandle& engine, const std::string& path,
         const std::vector<std::tuple<std::string, std::string, std::vector<int64_t>>>& tensors,
         const std::string& metadata) {
        std::vector<ExportTensor> list;
        list.reserve(tensors.size());
        for (const auto& [name, parameter, shape] : tensors) {
          list.push_back({name, parameter, shape});
        }
        export_safetensors(engine.engine(), *engine.owner()->comm, path, list, metadata);
      },
      unlocked, "engine"_a, "path"_a, "tensors"_a, "metadata"_a = "{}",
      "Collective. `tensors`: (name in the file, parameter, shape); no rank needs the whole "
      "model.");
}

}  // namespace zerorun
