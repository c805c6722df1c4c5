#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <unordered_map>
#include <vector>

#include "checkpoint/files/file.h"
#include "checkpoint/files/layout.h"
#include "checkpoint/format/json_reader.h"
#include "checkpoint/format/safetensors_format.h"
#include "checkpoint/loading/device_copies.h"
#include "comm/agreement.h"
#include "core/check.h"
#include "os/free_space.h"
#include "os/whole_file.h"
#include "zerorun/checkpoint.h"

namespace zerorun {

namespace fs = std::filesystem;

namespace {

// The texts of a JSON object, after {"format": "pt"}. Throws ConfigError when it is none.
SafetensorsMetadata parse_metadata(const std::string& metadata_json) {
  SafetensorsMetadata metadata = {{"format", "pt"}};
  const auto given = nlohmann::ordered_json::parse(metadata_json, nullptr, false);
  if (!given.is_object()) fail<ConfigError>("safetensors metadata is not a JSON object of texts");
  for (const auto& [key, value] : given.items()) {
    if (!value.is_string()) fail<ConfigError>("safetensors metadata '{}' is not a text", key);
    if (key == metadata.front().first) {
      metadata.front().second = value.get<std::string>();
    } else {
      metadata.emplace_back(key, value.get<std::string>());
    }
  }
  return metadata;
}

// The file of an export, and where in it the values of each parameter go.
struct Plan {
  fs::path path;
  fs::path folder;
  fs::path temporary;
  std::string header;
  uint64_t nbytes = 0;  // of the file
  // The offsets of each parameter's copies in the file: tied parameters may be stored twice.
  std::unordered_map<ParameterId, std::vector<uint64_t>> places;
};

DType dtype_of(const EngineStates& engine, const ParameterSpec& parameter) {
  return parameter.dtype.value_or(engine.param_dtype());
}

// Throws ConfigError when the tensor is not the parameter's.
SafetensorsEntry entry_of(const ExportTensor& tensor, const ParameterSpec& parameter, DType dtype) {
  const int64_t numel = checked_numel(tensor.shape, size_of(dtype));
  if (numel != parameter.numel()) {
    fail<ConfigError>("safetensors tensor '{}' has {} elements; parameter '{}' has {}", tensor.name,
                      numel, tensor.parameter, parameter.numel());
  }
  return {.name = tensor.name,
          .dtype_name = std::string(safetensors_name_of(dtype)),
          .shape = tensor.shape,
          .nbytes = static_cast<uint64_t>(numel) * size_of(dtype)};
}

Plan make_plan(const EngineStates& engine, const std::string& path,
               const std::vector<ExportTensor>& tensors, const std::string& metadata_json) {
  Plan plan{.path = path};
  if (!plan.path.has_filename()) fail<ConfigError>("'{}' does not name a file", path);
  plan.path = follow_links(plan.path);
  plan.folder = plan.path.has_parent_path() ? plan.path.parent_path() : fs::path(".");
  const auto specs = engine.parameters();
  std::unordered_map<std::string, ParameterId> ids;
  for (const ParameterSpec& spec : specs) {
    ids.emplace(spec.name, static_cast<ParameterId>(ids.size()));
  }
  std::vector<SafetensorsEntry> entries;
  std::unordered_map<std::string, ParameterId> owners;  // by name of the tensor
  for (const ExportTensor& tensor : tensors) {
    const auto found = ids.find(tensor.parameter);
    if (found == ids.end()) {
      fail<ConfigError>("safetensors tensor '{}': the model has no parameter named {}", tensor.name,
                        tensor.parameter);
    }
    const ParameterSpec& spec = specs[static_cast<size_t>(found->second)];
    entries.push_back(entry_of(tensor, spec, dtype_of(engine, spec)));
    owners[tensor.name] = spec.alias_of.empty() ? found->second : ids.at(spec.alias_of);
  }
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  plan.header = encode_safetensors_header(entries, parse_metadata(metadata_json));
  plan.nbytes = plan.header.size();
  for (const SafetensorsEntry& entry : entries) {
    plan.places[owners.at(entry.name)].push_back(entry.begin);
    plan.nbytes += entry.nbytes;
  }
  return plan;
}

// On rank 0.
void create(const Plan& plan) {
  const std::string path = plan.path.string();
  create_folders(plan.folder);
  remove_leftovers_of(plan.path);
  if (fs::is_directory(plan.path)) fail<IoError>("cannot write {}: it is a folder", path);
  if (fs::exists(plan.path) && !fs::is_regular_file(plan.path)) {
    fail<IoError>("cannot write {}: it is no regular file, which all ranks could write to", path);
  }
  const uint64_t available = free_space(plan.folder).value_or(plan.nbytes);
  if (available < plan.nbytes) {
    fail<IoError>("cannot write {}: it needs {} bytes, {} has {} free", path, plan.nbytes,
                  plan.folder.string(), available);
  }
  File file = File::create(plan.temporary);
  copy_permissions(plan.path, file.descriptor());
  file.resize(plan.nbytes);
  file.write(0, std::as_bytes(std::span(plan.header)));
  file.sync();
}

// Writes what this rank holds; returns how many bytes.
uint64_t write(EngineStates& engine, const Plan& plan) {
  if (!path_exists(plan.temporary)) {
    fail<IoError>("{} is not where rank 0 made it: all ranks must write to one file system",
                  plan.temporary.string());
  }
  uint64_t written = 0;
  File file = File::open_to_write(plan.temporary);
  DeviceCopies copies(engine.device());
  engine.visit_states(StateAccess::read, [&](const StateInterval& interval) {
    const auto places = plan.places.find(interval.parameter);
    if (!interval.owned || places == plan.places.end()) return;
    const ParameterSpec& spec = engine.parameters()[static_cast<size_t>(interval.parameter)];
    const uint64_t skipped =
        static_cast<uint64_t>(interval.begin) * size_of(dtype_of(engine, spec));
    copies.download(interval.param, interval.param_on_host,
                    [&, skipped, places](uint64_t offset, std::span<const std::byte> bytes) {
                      for (const uint64_t begin : places->second) {
                        file.write(begin + skipped + offset, bytes);
                        written += bytes.size();
                      }
                    });
  });
  copies.finish();
  file.sync();
  return written;
}

}  // namespace

void export_safetensors(EngineStates& engine, Communicator& comm, const std::string& path,
                        const std::vector<ExportTensor>& tensors,
                        const std::string& metadata_json) {
  Agreement agreement(comm, engine.device().inline_stream());
  const bool is_first = agreement.rank() == 0;
  Plan plan;
  int64_t written = 0;
  int64_t id = 0;
  agreement.run("export: plan", [&] {
    plan = make_plan(engine, path, tensors, metadata_json);
    id = static_cast<int64_t>(random_id());
  });
  plan.temporary = temporary_path(plan.path, static_cast<uint64_t>(agreement.broadcast(id)));
  try {
    agreement.run("export: create", [&] {
      if (is_first) create(plan);
    });
    agreement.run("export: write", [&] { written = static_cast<int64_t>(write(engine, plan)); });
    written = agreement.reduce(written, ReduceOp::sum);
    agreement.run("export: check", [&] {
      ZR_CHECK(plan.header.size() + static_cast<uint64_t>(written) == plan.nbytes,
               "the ranks wrote {} of {} bytes of {}", written, plan.nbytes - plan.header.size(),
               plan.path.string());
    });
    agreement.run("export: commit", [&] {
      if (!is_first) return;
      rename_path(plan.temporary, plan.path);
      sync_folder(plan.folder);
    });
  } catch (...) {
    std::error_code ignored;  // the next export tries again
    if (is_first) fs::remove(plan.temporary, ignored);
    throw;
  }
}

}  // namespace zerorun
