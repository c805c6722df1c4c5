#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "checkpoint/file.h"
#include "checkpoint/hashed_header.h"
#include "checkpoint/host_buffer.h"
#include "checkpoint/json_reader.h"
#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors_format.h"
#include "checkpoint/shard_file.h"
#include "checkpoint/shard_writer.h"
#include "comm/agreement.h"
#include "core/check.h"
#include "os/free_space.h"
#include "zerorun/checkpoint.h"

namespace zerorun {

namespace fs = std::filesystem;

namespace {

// One save. Methods without a rank in their name run on every rank.
class Save {
 public:
  Save(EngineStates& engine, Agreement& agreement, const SaveOptions& options)
      : engine_(engine), agreement_(agreement), options_(options), directory_(options.directory) {}

  // Plans what this rank will write; nothing on disk changes.
  ShardPlan plan();
  // Decides on the name of the temporary folder and the bytes that all ranks need.
  void agree_on(const ShardPlan& plan);
  void make_folder_on_rank_0();
  void write(const ShardPlan& plan);
  // Tells rank 0 what each rank wrote.
  void collect();
  // Until the rename in here, the previous checkpoint is the current one; from then on, the new.
  void commit_on_rank_0();
  void discard_on_rank_0() noexcept;

 private:
  void check_options() const;
  void write_shard(const ShardPlan& plan);
  void write_buffers();
  void replace_tag();
  std::string disk_use() const;

  EngineStates& engine_;
  Agreement& agreement_;
  const SaveOptions& options_;
  const fs::path directory_;
  std::string tag_;
  fs::path temporary_;
  fs::path temporary_latest_;
  uint64_t id_ = 0;
  uint64_t needed_ = 0;
  Manifest manifest_;
  Manifest::ShardFile written_;
};

void Save::check_options() const {
  if (options_.directory.empty()) fail<ConfigError>("save_checkpoint needs a directory");
  for (const auto& [what, text] : {std::pair("client state", &options_.client_state),
                                   std::pair("configuration", &options_.configuration)}) {
    if (!text->empty() && !nlohmann::json::accept(*text)) {
      fail<ConfigError>("the {} of a checkpoint is not valid JSON", what);
    }
    if (text->size() > kMaxClientStateNbytes) {
      fail<ConfigError>("the {} of a checkpoint has {} bytes; expected at most {}", what,
                        text->size(), kMaxClientStateNbytes);
    }
  }
  for (const NamedTensor& buffer : options_.buffers) {
    const size_t element = safetensors_size_of(buffer.dtype);
    if (element == 0) {
      fail<ConfigError>("buffer '{}' is of dtype {}, which safetensors does not have", buffer.name,
                        buffer.dtype);
    }
    const int64_t numel = checked_numel(buffer.shape, element);
    if (numel < 0 || static_cast<uint64_t>(numel) * element != buffer.bytes.size()) {
      fail<ConfigError>("buffer '{}' has {} bytes; its shape needs {} of {}", buffer.name,
                        buffer.bytes.size(), numel, buffer.dtype);
    }
  }
}

ShardPlan Save::plan() {
  check_options();
  tag_ = options_.tag.empty() ? fmt::format("step{}", engine_.progress().step_count) : options_.tag;
  check_tag(tag_);
  manifest_ = describe_engine(engine_);
  manifest_.client_state = options_.client_state;
  manifest_.configuration = options_.configuration;
  if (options_.exclude_frozen) {
    for (Manifest::Parameter& parameter : manifest_.parameters) {
      parameter.saved = parameter.trainable || !parameter.alias_of.empty();
    }
  }
  encode_manifest(manifest_);  // throws what it would throw after all data is written
  id_ = random_id();
  return ShardPlan(engine_, [frozen_too = !options_.exclude_frozen](const ParameterSpec& spec) {
    return frozen_too || spec.trainable;
  });
}

void Save::agree_on(const ShardPlan& plan) {
  id_ = static_cast<uint64_t>(agreement_.broadcast(static_cast<int64_t>(id_)));
  uint64_t own = plan.nbytes();
  if (agreement_.rank() == 0) {
    for (const NamedTensor& buffer : options_.buffers) own += buffer.bytes.size();
  }
  needed_ = static_cast<uint64_t>(agreement_.reduce(static_cast<int64_t>(own), ReduceOp::sum));
  temporary_ = temporary_path(directory_ / tag_, id_);
  temporary_latest_ = temporary_path(directory_ / kLatestName, id_);
}

std::string Save::disk_use() const {
  return fmt::format("the checkpoint needs {} bytes, {} has {} free", needed_, directory_.string(),
                     free_space(directory_).value_or(0));
}

void Save::make_folder_on_rank_0() {
  if (agreement_.rank() != 0) return;
  create_folders(directory_);
  remove_leftovers(directory_);
  if (free_space(directory_).value_or(needed_) < needed_) {
    fail<IoError>("cannot save {}: {}: free some space, or save elsewhere",
                  (directory_ / tag_).string(), disk_use());
  }
  create_folders(temporary_);
}

void Save::write(const ShardPlan& plan) {
  try {
    if (!path_exists(temporary_)) {
      fail<IoError>("{} is not where rank 0 made it: all ranks must save to one file system",
                    temporary_.string());
    }
    write_shard(plan);
    if (agreement_.rank() == 0) write_buffers();
  } catch (const IoError& error) {
    fail<IoError>("{}; {}", error.what(), disk_use());
  }
}

void Save::write_shard(const ShardPlan& plan) {
  HostBuffer buffer(engine_.device());
  ShardWriter writer(temporary_ / shard_name(agreement_.rank(), id_), plan.tensors());
  plan.read([&](size_t tensor, TensorView data) {
    buffer.download(data, [&](uint64_t offset, std::span<const std::byte> bytes) {
      writer.write(tensor, offset, bytes);
    });
  });
  written_ = writer.finish();
}

// Those with the largest elements first, so that all are aligned to theirs.
void Save::write_buffers() {
  if (options_.buffers.empty()) return;
  std::vector<const NamedTensor*> sorted;
  for (const NamedTensor& buffer : options_.buffers) sorted.push_back(&buffer);
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) {
    return safetensors_size_of(a->dtype) > safetensors_size_of(b->dtype);
  });
  std::vector<HashedTensor> tensors;
  for (const NamedTensor* buffer : sorted) {
    tensors.push_back({buffer->name, buffer->dtype, buffer->shape, buffer->bytes.size()});
  }
  encode_hashed_header(tensors);  // gives them their places
  ShardWriter writer(temporary_ / buffers_name(id_), std::move(tensors));
  for (size_t i = 0; i < sorted.size(); ++i) writer.write(i, 0, sorted[i]->bytes);
  manifest_.buffers = writer.finish();
}

void Save::collect() {
  const std::vector<int64_t> all = agreement_.gather(std::vector<int64_t>{
      static_cast<int64_t>(written_.nbytes), static_cast<int64_t>(written_.header_nbytes),
      static_cast<int64_t>(written_.header_hash)});
  for (int rank = 0; rank < agreement_.world_size(); ++rank) {
    const int64_t* words = &all[static_cast<size_t>(rank) * 3];
    manifest_.shards.push_back({.name = shard_name(rank, id_),
                                .nbytes = static_cast<uint64_t>(words[0]),
                                .header_nbytes = static_cast<uint64_t>(words[1]),
                                .header_hash = static_cast<uint64_t>(words[2])});
  }
}

void Save::commit_on_rank_0() {
  if (agreement_.rank() != 0) return;
  try {
    write_text(temporary_ / kManifestName, encode_manifest(manifest_));
    sync_folder(temporary_);
    // Before the checkpoint takes its place: from then on nothing needs space on the disk.
    if (options_.update_latest) write_text(temporary_latest_, tag_ + "\n");
    if (path_exists(directory_ / tag_)) {
      replace_tag();
    } else {
      rename_path(temporary_, directory_ / tag_);
    }
    sync_folder(directory_);
    if (!options_.update_latest) return;
    rename_path(temporary_latest_, directory_ / kLatestName);
    sync_folder(directory_);
  } catch (const IoError& error) {
    fail<IoError>("{}; {}", error.what(), disk_use());
  }
}

// Moves the files into the tag's folder, whose files have other names. The manifest moves last and
// atomically replaces the old one, on file systems that cannot exchange two folders too.
void Save::replace_tag() {
  const fs::path folder = directory_ / tag_;
  std::set<std::string> current;
  for (const Manifest::ShardFile& shard : manifest_.shards) current.insert(shard.name);
  if (manifest_.buffers) current.insert(manifest_.buffers->name);
  const auto remove_shards = [&](bool (*wanted)(bool is_current)) {
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      const std::string name = it->path().filename().string();
      std::error_code ignored;
      const bool ours = is_shard_name(name) || is_buffers_name(name);
      if (ours && wanted(current.contains(name))) fs::remove(it->path(), ignored);
    }
  };
  try {
    for (const std::string& name : current) rename_path(temporary_ / name, folder / name);
    sync_folder(folder);
    rename_path(temporary_ / kManifestName, folder / kManifestName);
  } catch (...) {
    remove_shards([](bool is_current) { return is_current; });
    throw;
  }
  sync_folder(folder);
  remove_shards([](bool is_current) { return !is_current; });
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

void Save::discard_on_rank_0() noexcept {
  if (agreement_.rank() != 0 || temporary_.empty()) return;
  std::error_code ignored;  // the next save tries again
  fs::remove_all(temporary_, ignored);
  fs::remove(temporary_latest_, ignored);
}

}  // namespace

uint64_t checkpoint_nbytes(EngineStates& engine) { return ShardPlan(engine).nbytes(); }

void save_checkpoint(EngineStates& engine, Communicator& comm, const SaveOptions& options) {
  Agreement agreement(comm, engine.device().inline_stream());
  Save save(engine, agreement, options);
  std::optional<ShardPlan> plan;
  agreement.run("save: plan", [&] { plan.emplace(save.plan()); });
  save.agree_on(*plan);
  try {
    agreement.run("save: make folder", [&] { save.make_folder_on_rank_0(); });
    agreement.run("save: write", [&] { save.write(*plan); });
    save.collect();
    agreement.run("save: commit", [&] { save.commit_on_rank_0(); });
  } catch (...) {
    save.discard_on_rank_0();
    throw;
  }
}

}  // namespace zerorun
