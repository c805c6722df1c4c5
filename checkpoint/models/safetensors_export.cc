#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
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

// One export. Methods without a rank in their name run on every rank.
class Export {
 public:
  Export(EngineStates& engine, Agreement& agreement, const std::string& path)
      : engine_(engine), agreement_(agreement), path_(path) {}

  // Decides where in the file each parameter goes.
  void plan(const std::vector<ExportTensor>& tensors, const std::string& metadata_json);
  void agree_on_name();
  void create_on_rank_0();
  // Writes what this rank holds.
  void write();
  void check_complete();
  void commit_on_rank_0();
  void discard_on_rank_0() noexcept;

 private:
  // Throws ConfigError when the model has no such parameter.
  ParameterId find(const ExportTensor& tensor) const;
  SafetensorsEntry entry_of(const ExportTensor& tensor);
  DType dtype_of(ParameterId id) const;

  EngineStates& engine_;
  Agreement& agreement_;
  fs::path path_;
  fs::path folder_;
  fs::path temporary_;
  std::string header_;
  uint64_t nbytes_ = 0;   // of the file
  uint64_t written_ = 0;  // tensor bytes by this rank
  uint64_t id_ = 0;
  std::unordered_map<std::string, ParameterId> ids_;  // by name
  // The offsets of each parameter's copies in the file: tied parameters may be stored twice.
  std::unordered_map<ParameterId, std::vector<uint64_t>> places_;
};

ParameterId Export::find(const ExportTensor& tensor) const {
  const auto found = ids_.find(tensor.parameter);
  if (found != ids_.end()) return found->second;
  fail<ConfigError>("safetensors tensor '{}': the model has no parameter named {}", tensor.name,
                    tensor.parameter);
}

DType Export::dtype_of(ParameterId id) const {
  return engine_.parameters()[static_cast<size_t>(id)].dtype.value_or(engine_.param_dtype());
}

SafetensorsEntry Export::entry_of(const ExportTensor& tensor) {
  const ParameterId id = find(tensor);
  const ParameterSpec& parameter = engine_.parameters()[static_cast<size_t>(id)];
  const size_t element = size_of(dtype_of(id));
  const int64_t numel = checked_numel(tensor.shape, element);
  if (numel != parameter.numel()) {
    fail<ConfigError>("safetensors tensor '{}' has {} elements; parameter '{}' has {}", tensor.name,
                      numel, tensor.parameter, parameter.numel());
  }
  return {.name = tensor.name,
          .dtype_name = std::string(safetensors_name_of(dtype_of(id))),
          .shape = tensor.shape,
          .nbytes = static_cast<uint64_t>(numel) * element};
}

void Export::plan(const std::vector<ExportTensor>& tensors, const std::string& metadata_json) {
  if (!path_.has_filename()) fail<ConfigError>("'{}' does not name a file", path_.string());
  path_ = follow_links(path_);
  folder_ = path_.has_parent_path() ? path_.parent_path() : fs::path(".");
  id_ = random_id();
  for (const ParameterSpec& spec : engine_.parameters()) {
    ids_.emplace(spec.name, static_cast<ParameterId>(ids_.size()));
  }
  std::vector<SafetensorsEntry> entries;
  std::unordered_map<std::string, ParameterId> parameters;
  for (const ExportTensor& tensor : tensors) {
    entries.push_back(entry_of(tensor));
    const ParameterId id = find(tensor);
    const std::string& owner = engine_.parameters()[static_cast<size_t>(id)].alias_of;
    parameters[tensor.name] = owner.empty() ? id : ids_.at(owner);
  }
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  header_ = encode_safetensors_header(entries, parse_metadata(metadata_json));
  nbytes_ = header_.size();
  for (const SafetensorsEntry& entry : entries) {
    places_[parameters.at(entry.name)].push_back(entry.begin);
    nbytes_ += entry.nbytes;
  }
}

void Export::agree_on_name() {
  id_ = static_cast<uint64_t>(agreement_.broadcast(static_cast<int64_t>(id_)));
  temporary_ = temporary_path(path_, id_);
}

void Export::create_on_rank_0() {
  if (agreement_.rank() != 0) return;
  create_folders(folder_);
  remove_leftovers_of(path_);
  if (fs::is_directory(path_)) fail<IoError>("cannot write {}: it is a folder", path_.string());
  if (fs::exists(path_) && !fs::is_regular_file(path_)) {
    fail<IoError>("cannot write {}: it is no regular file, which all ranks could write to",
                  path_.string());
  }
  const uint64_t available = free_space(folder_).value_or(nbytes_);
  if (available < nbytes_) {
    fail<IoError>("cannot write {}: it needs {} bytes, {} has {} free", path_.string(), nbytes_,
                  folder_.string(), available);
  }
  File file = File::create(temporary_);
  copy_permissions(path_, file.descriptor());
  file.resize(nbytes_);
  file.write(0, std::as_bytes(std::span(header_)));
  file.sync();
}

void Export::write() {
  if (!path_exists(temporary_)) {
    fail<IoError>("{} is not where rank 0 made it: all ranks must write to one file system",
                  temporary_.string());
  }
  File file = File::open_to_write(temporary_);
  DeviceCopies copies(engine_.device());
  engine_.visit_states(StateAccess::read, [&](const StateInterval& interval) {
    const auto places = places_.find(interval.parameter);
    if (!interval.owned || places == places_.end()) return;
    const uint64_t skipped =
        static_cast<uint64_t>(interval.begin) * size_of(dtype_of(interval.parameter));
    copies.download(interval.param, interval.param_on_host,
                    [&, skipped, places](uint64_t offset, std::span<const std::byte> bytes) {
                      for (const uint64_t begin : places->second) {
                        file.write(begin + skipped + offset, bytes);
                        written_ += bytes.size();
                      }
                    });
  });
  copies.finish();
  file.sync();
}

void Export::check_complete() {
  const int64_t written = agreement_.reduce(static_cast<int64_t>(written_), ReduceOp::sum);
  agreement_.run("export: check", [&] {
    ZR_CHECK(header_.size() + static_cast<uint64_t>(written) == nbytes_,
             "the ranks wrote {} of {} bytes of {}", written, nbytes_ - header_.size(),
             path_.string());
  });
}

void Export::commit_on_rank_0() {
  if (agreement_.rank() != 0) return;
  rename_path(temporary_, path_);
  sync_folder(folder_);
}

void Export::discard_on_rank_0() noexcept {
  if (agreement_.rank() != 0) return;
  std::error_code ignored;  // the next export tries again
  fs::remove(temporary_, ignored);
}

}  // namespace

void export_safetensors(EngineStates& engine, Communicator& comm, const std::string& path,
                        const std::vector<ExportTensor>& tensors,
                        const std::string& metadata_json) {
  Agreement agreement(comm, engine.device().inline_stream());
  Export job(engine, agreement, path);
  agreement.run("export: plan", [&] { job.plan(tensors, metadata_json); });
  job.agree_on_name();
  try {
    agreement.run("export: create", [&] { job.create_on_rank_0(); });
    agreement.run("export: write", [&] { job.write(); });
    job.check_complete();
    agreement.run("export: commit", [&] { job.commit_on_rank_0(); });
  } catch (...) {
    job.discard_on_rank_0();
    throw;
  }
}

}  // namespace zerorun
