#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checkpoint/files/file.h"
#include "checkpoint/files/layout.h"
#include "checkpoint/format/json_reader.h"
#include "checkpoint/format/safetensors_format.h"
#include "checkpoint/loading/checkpoint_reader.h"
#include "core/check.h"
#include "os/text_file.h"
#include "zerorun/checkpoint.h"

namespace zerorun {

namespace fs = std::filesystem;

namespace {

constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr uint64_t kMaxIndexNbytes = uint64_t{1} << 28;

// The files of a model split over several, and the tensors that the index says are in each.
std::map<std::string, std::vector<std::string>> read_index(const fs::path& path) {
  const std::string text = read_text(path, kMaxIndexNbytes);
  const std::string file = path.string();
  const nlohmann::json json = parse_json(text, file);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (map == json.end() || !map->is_object()) {
    fail<CheckpointError>("{}: expected an object 'weight_map'", file);
  }
  std::map<std::string, std::vector<std::string>> files;
  for (const auto& [tensor, value] : map->items()) {
    const std::string name = value.is_string() ? value.get<std::string>() : "";
    if (name.empty() || name.find('/') != name.npos || name.front() == '.') {
      fail<CheckpointError>("{}: weight_map: '{}' is not in a file of this folder", file, tensor);
    }
    files[name].push_back(tensor);
  }
  return files;
}

[[noreturn]] void fail_no_model(const fs::path& folder) {
  const bool pickled = path_exists(folder / "pytorch_model.bin") ||
                       path_exists(folder / "pytorch_model.bin.index.json");
  fail<CheckpointError>("{} holds neither {} nor {}{}", folder.string(), kSingleName, kIndexName,
                        pickled ? ": pytorch_model.bin is not read; save the model with "
                                  "save_pretrained(..., safe_serialization=True)"
                                : "");
}

}  // namespace

struct SafetensorsReader::Impl {
  void add_file(const fs::path& path);
  void add_folder(const fs::path& folder);
  void add_tensor(const MappedFile& file, SafetensorsHeader::Tensor&& tensor,
                  const std::string& path);

  std::vector<MappedFile> files;
  std::vector<std::vector<std::byte>> copies;
  std::vector<Tensor> tensors;
  std::unordered_map<std::string, size_t> index;
  std::unordered_map<std::string, std::string> unsupported;  // name to what is the matter
};

void SafetensorsReader::Impl::add_file(const fs::path& path) {
  files.emplace_back(path);
  SafetensorsHeader header =
      decode_safetensors_header(files.back().bytes(), files.back().bytes().size(), path.string());
  for (SafetensorsHeader::Tensor& tensor : header.tensors) {
    add_tensor(files.back(), std::move(tensor), path.string());
  }
}

void SafetensorsReader::Impl::add_tensor(const MappedFile& file, SafetensorsHeader::Tensor&& tensor,
                                         const std::string& path) {
  if (index.contains(tensor.name) || unsupported.contains(tensor.name)) {
    fail<CheckpointError>("{}: offset {}: tensor '{}' is in another file too", path, tensor.begin,
                          tensor.name);
  }
  if (!tensor.dtype) {
    unsupported.emplace(
        tensor.name, fmt::format("{}: offset {}: tensor '{}' is of dtype {}; expected F32, BF16, "
                                 "F16, I64 or U8",
                                 path, tensor.begin, tensor.name, tensor.dtype_name));
    return;
  }
  std::span<std::byte> bytes = file.bytes().subspan(tensor.begin, tensor.end - tensor.begin);
  // Files of other writers need not align their tensors, and code that uses them relies on it.
  if (reinterpret_cast<uintptr_t>(bytes.data()) % size_of(*tensor.dtype) != 0) {
    bytes = copies.emplace_back(bytes.begin(), bytes.end());
  }
  const auto numel = static_cast<int64_t>(bytes.size() / size_of(*tensor.dtype));
  index.emplace(tensor.name, tensors.size());
  tensors.push_back({.name = std::move(tensor.name),
                     .shape = std::move(tensor.shape),
                     .data = {bytes.data(), numel, *tensor.dtype}});
}

void SafetensorsReader::Impl::add_folder(const fs::path& folder) {
  if (path_exists(folder / kSingleName)) return add_file(folder / kSingleName);
  if (!path_exists(folder / kIndexName)) fail_no_model(folder);
  for (const auto& [name, expected] : read_index(folder / kIndexName)) {
    if (!path_exists(folder / name)) {
      fail<CheckpointError>("{} is missing, although {} lists it", (folder / name).string(),
                            kIndexName);
    }
    const size_t first = tensors.size();
    add_file(folder / name);
    for (const std::string& tensor : expected) {
      const auto found = index.find(tensor);
      const bool here = found != index.end() && found->second >= first;
      if (!here && !unsupported.contains(tensor)) {
        fail<CheckpointError>("{} has no tensor '{}', although {} says so",
                              (folder / name).string(), tensor, kIndexName);
      }
    }
  }
}

SafetensorsReader::SafetensorsReader(const std::string& path) : impl_(std::make_unique<Impl>()) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    impl_->add_folder(path);
  } else {
    impl_->add_file(path);
  }
}

SafetensorsReader::~SafetensorsReader() = default;
SafetensorsReader::SafetensorsReader(SafetensorsReader&&) noexcept = default;
SafetensorsReader& SafetensorsReader::operator=(SafetensorsReader&&) noexcept = default;

const std::vector<SafetensorsReader::Tensor>& SafetensorsReader::tensors() const {
  return impl_->tensors;
}

const SafetensorsReader::Tensor* SafetensorsReader::find(const std::string& name) const {
  const auto unsupported = impl_->unsupported.find(name);
  if (unsupported != impl_->unsupported.end()) fail<CheckpointError>("{}", unsupported->second);
  const auto found = impl_->index.find(name);
  return found == impl_->index.end() ? nullptr : &impl_->tensors[found->second];
}

void SafetensorsReader::forget(TensorView part) const {
  for (const MappedFile& file : impl_->files) {
    file.forget({static_cast<const std::byte*>(part.data), part.nbytes()});
  }
}

// Checkpoints, as models.
struct SavedModel::Impl {
  explicit Impl(std::filesystem::path folder) : checkpoint(std::move(folder)) {
    const Manifest& manifest = checkpoint.manifest();
    for (const Manifest::Parameter& saved : manifest.parameters) {
      Parameter parameter{.name = saved.name,
                          .shape = saved.shape,
                          .dtype = saved.dtype,
                          .trainable = saved.trainable,
                          .saved = saved.saved,
                          .alias_of = saved.alias_of};
      int kind = CheckpointReader::kParam;
      if (!saved.states.empty()) {  // the master is the first of them
        parameter.dtype = manifest.states[static_cast<size_t>(saved.states.front())].dtype;
        kind = 1 + saved.states.front();
      }
      parameters.push_back(std::move(parameter));
      kinds.push_back(kind);
    }
    for (const HashedTensor& buffer : checkpoint.buffers()) {
      buffers.push_back({buffer.name, buffer.dtype_name, buffer.shape, {}});
    }
  }

  CheckpointReader checkpoint;
  std::vector<Parameter> parameters;
  std::vector<int> kinds;  // of records, by parameter
  std::vector<NamedTensor> buffers;
};

SavedModel::SavedModel(const std::string& directory, const std::string& tag)
    : impl_(std::make_unique<Impl>(find_checkpoint(directory, tag))) {}
SavedModel::~SavedModel() = default;
SavedModel::SavedModel(SavedModel&&) noexcept = default;
SavedModel& SavedModel::operator=(SavedModel&&) noexcept = default;

const std::vector<SavedModel::Parameter>& SavedModel::parameters() const {
  return impl_->parameters;
}

std::string SavedModel::tag() const { return impl_->checkpoint.folder().filename().string(); }

const std::string& SavedModel::client_state() const {
  return impl_->checkpoint.manifest().client_state;
}

const std::string& SavedModel::configuration() const {
  return impl_->checkpoint.manifest().configuration;
}

const std::vector<NamedTensor>& SavedModel::buffers() const { return impl_->buffers; }

void SavedModel::read_buffer(size_t buffer, std::span<std::byte> out) const {
  impl_->checkpoint.read_buffer(buffer, out);
}

int64_t SavedModel::step() const { return impl_->checkpoint.manifest().progress.step_count; }

void SavedModel::read(size_t parameter, TensorView out) const {
  const CheckpointReader& checkpoint = impl_->checkpoint;
  const Parameter& saved = impl_->parameters.at(parameter);
  ZR_CHECK(saved.saved && saved.alias_of.empty(), "{} has no data of its own", saved.name);
  const int64_t numel = checkpoint.manifest().parameters[parameter].numel();
  ZR_CHECK(out.dtype == saved.dtype && out.numel == numel, "{}: got {} elements of {}", saved.name,
           out.numel, name_of(out.dtype));
  std::optional<File> file;
  int shard = -1;
  const int index = static_cast<int>(parameter);
  for (const auto& record : checkpoint.records_of(index, impl_->kinds[parameter], 0, numel)) {
    if (record.shard != std::exchange(shard, record.shard)) file = checkpoint.open(shard);
    const TensorView part = out.slice(record.begin, record.numel);
    const std::span<std::byte> bytes(part.as<std::byte>(), part.nbytes());
    checkpoint.read(*file, record, 0, bytes);
    checkpoint.check_hash(record, hash_of(std::span<const std::byte>(bytes)));
  }
}

}  // namespace zerorun
