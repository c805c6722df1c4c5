#include <pybind11/stl.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "checkpoint/folder/node_local.h"
#include "checkpoint/format/manifest.h"
#include "comm/agreement.h"
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

// (name, bytes, host)
using FileList = std::vector<std::tuple<std::string, uint64_t, std::string>>;

void register_saved_model(py::module_& m) {
  py::class_<SavedModel::Parameter>(m, "SavedParameter", "One parameter of a saved model.")
      .def_readonly("name", &SavedModel::Parameter::name)
      .def_readonly("shape", &SavedModel::Parameter::shape)
      .def_readonly("dtype", &SavedModel::Parameter::dtype)
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

// Calls `save(options)` of a method or function with the arguments of a save behind its first one.
// The buffers' bytes stay the tensors'.
template <typename Self, typename Save>
auto with_save_arguments(const Save& save) {
  return [save](Self& self, std::string directory, std::string tag, std::string client_state,
                bool exclude_frozen, bool update_latest, std::string configuration,
                const BufferList& buffers, std::pair<int64_t, int64_t> keep, bool node_local) {
    SaveOptions options{.directory = std::move(directory),
                        .tag = std::move(tag),
                        .client_state = std::move(client_state),
                        .exclude_frozen = exclude_frozen,
                        .update_latest = update_latest,
                        .configuration = std::move(configuration),
                        .keep = {.last = keep.first, .every = keep.second},
                        .node_local = node_local};
    for (const auto& [name, dtype, shape, data] : buffers) {
      const TensorView bytes = import_tensor(data, name);
      options.buffers.push_back({name, dtype, shape, {bytes.as<std::byte>(), bytes.nbytes()}});
    }
    save(self, options);
  };
}

// Python's reference to an AsyncSaver, with the engine that it saves.
class SaverHandle {
 public:
  SaverHandle(const EngineHandle& engine, const AsyncOptions& options) : owner_(engine.owner()) {
    unlocked(engine, [&](Engine& core) { saver_.emplace(core.states(), *owner_->comm, options); });
  }
  SaverHandle(const SaverHandle&) = delete;
  SaverHandle& operator=(const SaverHandle&) = delete;
  ~SaverHandle() {  // NOLINT(bugprone-exception-escape): as EngineOwner's
    const WithoutGil unlocked;
    saver_.reset();
  }

  // Calls `work` with the saver and without the GIL, and returns its result.
  template <typename Work>
  auto without_gil(const Work& work) {
    owner_->settle();
    owner_->enter();
    const py::gil_scoped_release release;
    return work(*saver_);
  }

 private:
  std::shared_ptr<EngineOwner> owner_;
  std::optional<AsyncSaver> saver_;
};

void register_async_saver(py::module_& m) {
  py::class_<SaverHandle>(m, "AsyncSaver", "Saves that a thread writes beside the training.")
      .def(py::init([](const EngineHandle& engine, uint64_t buffer_nbytes, double peer_timeout) {
             AsyncOptions options{.buffer_nbytes = buffer_nbytes};
             options.peer_timeout =
                 std::chrono::milliseconds(static_cast<int64_t>(peer_timeout * 1e3));
             return std::make_unique<SaverHandle>(engine, options);
           }),
           "engine"_a, "buffer_nbytes"_a, "peer_timeout"_a,
           "`buffer_nbytes`: of the snapshot, 0: what fits. `peer_timeout`: seconds that rank 0 "
           "waits for the files of others.")
      .def("save",
           with_save_arguments<SaverHandle>([](SaverHandle& self, const SaveOptions& options) {
             self.without_gil([&](AsyncSaver& saver) { saver.save(options); });
           }),
           "directory"_a, "tag"_a, "client_state"_a = "{}", "exclude_frozen"_a = false,
           "update_latest"_a = true, "configuration"_a = "", "buffers"_a = BufferList(),
           "keep"_a = std::pair<int64_t, int64_t>(), "node_local"_a = false,
           "Collective. Returns when the states are copied. Throws the error of the save before.")
      .def(
          "poll",
          [](SaverHandle& self) {
            return self.without_gil([](AsyncSaver& saver) { return saver.poll(); });
          },
          "Collective. True when no save is under way; throws the error of one that failed.")
      .def(
          "wait",
          [](SaverHandle& self) { self.without_gil([](AsyncSaver& saver) { saver.wait(); }); },
          "Collective. Waits for the last save and throws its error.")
      .def(
          "wait_alone",
          [](SaverHandle& self) {
            self.without_gil([](AsyncSaver& saver) { saver.wait_alone(); });
          },
          "The same without the other ranks, for a program that ends.");
}

// Checkpoints of which each host keeps a part.
void register_node_local(py::module_& m) {
  m.def(
      "share_checkpoint",
      [](const EngineHandle& engine, const std::string& directory, const std::string& tag) {
        return unlocked(engine, [&](Engine& core) {
          return share_checkpoint(core.states(), *engine.owner()->comm, directory, tag);
        });
      },
      "engine"_a, "directory"_a, "tag"_a = "",
      "Collective. Brings a checkpoint's tables to the disks that lack them; returns its folder.");
  m.def(
      "bring_files",
      [](const EngineHandle& engine, const std::string& folder, const FileList& files,
         const std::vector<bool>& needed) {
        std::vector<Manifest::ShardFile> list;
        list.reserve(files.size());
        for (const auto& [name, nbytes, host] : files) {
          list.push_back({.name = name, .nbytes = nbytes, .host = host});
        }
        unlocked(engine, [&](Engine& core) {
          Communicator& comm = *engine.owner()->comm;
          Stream& stream = core.device().inline_stream();
          Agreement agreement(comm, stream);
          bring_files(agreement, Disks(comm, stream, folder), list, folder, needed);
        });
      },
      "engine"_a, "folder"_a, "files"_a, "needed"_a,
      "Collective. Copies files, as (name, bytes, host where it was written), to the disks of "
      "ranks "
      "that need them and lack them; the folder is made where it is missing.");
}

}  // namespace

void register_checkpoint(py::module_& m) {
  register_saved_model(m);
  register_node_local(m);
  py::class_<LoadedCheckpoint>(m, "LoadedCheckpoint", "What was loaded besides the model.")
      .def_readonly("tag", &LoadedCheckpoint::tag)
      .def_readonly("client_state", &LoadedCheckpoint::client_state)
      .def_readonly("step", &LoadedCheckpoint::step);
  register_async_saver(m);
  m.def("save_checkpoint",
        with_save_arguments<const EngineHandle>(
            [](const EngineHandle& engine, const SaveOptions& options) {
              unlocked(engine, [&](Engine& core) {
                save_checkpoint(core.states(), *engine.owner()->comm, options);
              });
            }),
        "engine"_a, "directory"_a, "tag"_a, "client_state"_a = "{}", "exclude_frozen"_a = false,
        "update_latest"_a = true, "configuration"_a = "", "buffers"_a = BufferList(),
        "keep"_a = std::pair<int64_t, int64_t>(), "node_local"_a = false,
        "Collective. `buffers`: (name, dtype as safetensors spells it, shape, a uint8 tensor of "
        "the bytes), rank 0's. `keep`: the last so many checkpoints, and those whose step is a "
        "multiple of the second; 0: all, none. An earlier checkpoint stays loadable until this one "
        "is complete.");
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
  m.def("nearest_parameter", &nearest_parameter, "name"_a, "candidates"_a,
        "The parameter that was meant by a name which is not there; empty when none is near.");
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
