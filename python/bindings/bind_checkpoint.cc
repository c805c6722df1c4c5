#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/bindings/engine_handle.h"
#include "python/bindings/register.h"
#include "python/bindings/tensor_exchange.h"
#include "zerorun/checkpoint.h"

namespace py = pybind11;
using namespace py::literals;

namespace zerorun {

namespace {

// (name, dtype as safetensors spells it, shape, a tensor of the bytes)
using BufferList =
    std::vector<std::tuple<std::string, std::string, std::vector<int64_t>, py::object>>;

void register_saved_model(py::module_& m) {
  py::class_<SavedModel::Parameter>(m, "SavedParameter", "One parameter of a saved model.")
      .def_readonly("name", &SavedModel::Parameter::name)
      .def_readonly("shape", &SavedModel::Parameter::shape)
      .def_property_readonly(
          "dtype",
          [](const SavedModel::Parameter& self) { return std::string(name_of(self.dtype)); })
      .def_readonly("trainable", &SavedModel::Parameter::trainable)
      .def_readonly("saved", &SavedModel::Parameter::saved)
      .def_readonly("alias_of", &SavedModel::Parameter::alias_of);
  py::class_<SavedModel>(m, "SavedModel", "The model in a checkpoint, read without an engine.")
      .def(py::init<const std::string&, const std::string&>(), "directory"_a, "tag"_a = "")
      .def_property_readonly("parameters", &SavedModel::parameters)
      .def_property_readonly("tag", &SavedModel::tag)
      .def_property_readonly("client_state", &SavedModel::client_state)
      .def_property_readonly("configuration", &SavedModel::configuration)
      .def_property_readonly("step", &SavedModel::step)
      .def_property_readonly(
          "buffers",
          [](const SavedModel& self) {
            std::vector<std::tuple<std::string, std::string, std::vector<int64_t>>> buffers;
            for (const NamedTensor& buffer : self.buffers()) {
              buffers.emplace_back(buffer.name, buffer.dtype, buffer.shape);
            }
            return buffers;
          },
          "(name, dtype as safetensors spells it, shape) of each.")
      .def(
          "read_buffer",
          [](const SavedModel& self, size_t buffer, const py::object& out) {
            const TensorView view = import_tensor(out, self.buffers().at(buffer).name);
            const py::gil_scoped_release release;
            self.read_buffer(buffer, {view.as<std::byte>(), view.nbytes()});
          },
          "buffer"_a, "out"_a, "The bytes of the buffer of that index, into a uint8 tensor.")
      .def(
          "read",
          [](const SavedModel& self, size_t parameter, const py::object& out) {
            const TensorView view = import_tensor(out, self.parameters().at(parameter).name);
            const py::gil_scoped_release release;
            self.read(parameter, view);
          },
          "parameter"_a, "out"_a, "All elements of the parameter of that index, into a tensor.");
}

}  // namespace

void register_checkpoint(py::module_& m) {
  register_saved_model(m);
  py::class_<LoadedCheckpoint>(m, "LoadedCheckpoint", "What was loaded besides the model.")
      .def_readonly("tag", &LoadedCheckpoint::tag)
      .def_readonly("client_state", &LoadedCheckpoint::client_state)
      .def_readonly("step", &LoadedCheckpoint::step);
  m.def(
      "save_checkpoint",
      [](const EngineHandle& engine, const std::string& directory, const std::string& tag,
         const std::string& client_state, bool exclude_frozen, bool update_latest,
         const std::string& configuration, const BufferList& buffers) {
        SaveOptions options{.directory = directory,
                            .tag = tag,
                            .client_state = client_state,
                            .exclude_frozen = exclude_frozen,
                            .update_latest = update_latest,
                            .configuration = configuration};
        for (const auto& [name, dtype, shape, data] : buffers) {
          const TensorView bytes = import_tensor(data, name);
          options.buffers.push_back({name, dtype, shape, {bytes.as<std::byte>(), bytes.nbytes()}});
        }
        unlocked(engine, [&](Engine& core) {
          save_checkpoint(core.states(), *engine.owner()->comm, options);
        });
      },
      "engine"_a, "directory"_a, "tag"_a, "client_state"_a = "{}", "exclude_frozen"_a = false,
      "update_latest"_a = true, "configuration"_a = "", "buffers"_a = BufferList(),
      "Collective. `buffers`: (name, dtype as safetensors spells it, shape, a uint8 tensor of the "
      "bytes), rank 0's. An earlier checkpoint stays loadable until this one is complete.");
  m.def(
      "load_checkpoint",
      [](const EngineHandle& engine, const std::string& directory, const std::string& tag,
         bool strict) {
        return unlocked(engine, [&](Engine& core) {
          return load_checkpoint(core.states(), *engine.owner()->comm, directory, tag, strict);
        });
      },
      "engine"_a, "directory"_a, "tag"_a = "", "strict"_a = true,
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
        unlocked(engine, [&](Engine& core) {
          export_safetensors(core.states(), *engine.owner()->comm, path, list, metadata);
        });
      },
      "engine"_a, "path"_a, "tensors"_a, "metadata"_a = "{}",
      "Collective. `tensors`: (name in the file, parameter, shape); no rank needs the whole "
      "model.");
}

}  // namespace zerorun
