#include <optional>
#include <span>
#include <utility>

#include "checkpoint/files/file.h"
#include "checkpoint/files/layout.h"
#include "checkpoint/loading/checkpoint_reader.h"
#include "core/check.h"
#include "zerorun/checkpoint.h"

namespace zerorun {

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
