#include "checkpoint/saving/save.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/files/layout.h"
#include "checkpoint/folder/node_local.h"
#include "checkpoint/format/json_reader.h"
#include "checkpoint/format/safetensors_format.h"
#include "checkpoint/format/shard_file.h"
#include "checkpoint/loading/device_copies.h"
#include "comm/agreement.h"
#include "core/check.h"
#include "os/process_identity.h"
#include "zerorun/checkpoint.h"

namespace zerorun {

namespace {

constexpr uint64_t kPartNbytes = uint64_t{256} << 10;  // stays in the cache between hash and copy

uint64_t length_of(const std::vector<HashedTensor>& tensors) {
  return tensors.empty() ? 0 : tensors.back().end();
}

void check_options(const SaveOptions& options) {
  if (options.directory.empty()) fail<ConfigError>("save_checkpoint needs a directory");
  for (const auto& [what, text] : {std::pair("client state", &options.client_state),
                                   std::pair("configuration", &options.configuration)}) {
    if (!text->empty() && !nlohmann::json::accept(*text)) {
      fail<ConfigError>("the {} of a checkpoint is not valid JSON", what);
    }
    if (text->size() > kMaxClientStateNbytes) {
      fail<ConfigError>("the {} of a checkpoint has {} bytes; expected at most {}", what,
                        text->size(), kMaxClientStateNbytes);
    }
  }
  for (const NamedTensor& buffer : options.buffers) {
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

Manifest make_manifest(EngineStates& engine, const SaveOptions& options) {
  Manifest manifest = describe_engine(engine);
  manifest.client_state = options.client_state;
  manifest.configuration = options.configuration;
  if (options.exclude_frozen) {
    for (Manifest::Parameter& parameter : manifest.parameters) {
      parameter.saved = parameter.trainable || !parameter.alias_of.empty();
    }
  }
  return manifest;
}

// With node-local storage: records in the manifest which host has which file, and brings manifest,
// headers and buffers to every disk. The manifest becomes rank 0's, so that all disks have the
// same.
void complete_disks(Communicator& comm, Stream& stream, PreparedSave& save) {
  Agreement agreement(comm, stream);
  constexpr size_t kNameNbytes = 64;
  const bool is_first = agreement.rank() == 0;
  std::array<int64_t, kNameNbytes / sizeof(int64_t)> own{};
  const std::string name = host_name().substr(0, kNameNbytes - 1);
  std::memcpy(own.data(), name.data(), name.size());
  const std::vector<int64_t> names = agreement.gather(own);
  for (size_t rank = 0; rank < save.manifest.shards.size(); ++rank) {
    save.manifest.shards[rank].host = reinterpret_cast<const char*>(&names[rank * own.size()]);
  }
  const std::string text =
      share_text(comm, stream, is_first ? encode_manifest(save.manifest) : "", 0);
  save.manifest = decode_manifest(text, save.folder.place().string());
  bring_headers(agreement, save.disks, save.manifest, save.folder.temporary());
}

// Tells all ranks what each of them wrote.
std::vector<Manifest::ShardFile> gather_shards(Agreement& agreement, const SaveFolder& folder,
                                               const Manifest::ShardFile& own) {
  const std::vector<int64_t> all = agreement.gather(std::vector<int64_t>{
      static_cast<int64_t>(own.nbytes), static_cast<int64_t>(own.header_nbytes),
      static_cast<int64_t>(own.header_hash)});
  std::vector<Manifest::ShardFile> shards;
  for (int rank = 0; rank < agreement.world_size(); ++rank) {
    const int64_t* words = &all[static_cast<size_t>(rank) * 3];
    shards.push_back({.name = shard_name(rank, folder.id()),
                      .nbytes = static_cast<uint64_t>(words[0]),
                      .header_nbytes = static_cast<uint64_t>(words[1]),
                      .header_hash = static_cast<uint64_t>(words[2])});
  }
  return shards;
}

// Writes this rank's part into its file, through a small buffer where it is not in host memory.
Manifest::ShardFile write_shard(EngineStates& engine, const PreparedSave& save, int rank) {
  ShardWriter writer(save.folder.shard(rank), save.plan.tensors());
  DeviceCopies copies(engine.device());
  save.plan.read([&](size_t tensor, TensorView data, bool on_host) {
    if (!on_host && engine.device().is_host()) {  // it stays there until the next step
      return writer.write_in_place(tensor, 0, {data.data, data.nbytes()});
    }
    copies.download(data, on_host,
                    [&writer, tensor](uint64_t offset, std::span<const std::byte> bytes) {
                      writer.write(tensor, offset, bytes);
                    });
  });
  copies.finish();
  return writer.finish();
}

}  // namespace

ShardWriter::ShardWriter(const std::filesystem::path& path, std::vector<HashedTensor> tensors)
    : tensors_(std::move(tensors)), file_(path, length_of(tensors_)) {
  for (HashedTensor& tensor : tensors_) tensor.hashes.assign(chunks_of(tensor.nbytes), 0);
}

HashedTensor& ShardWriter::next(size_t tensor, uint64_t offset, size_t nbytes) {
  HashedTensor& to = tensors_.at(tensor);
  ZR_CHECK(offset == done_ && offset + nbytes <= to.nbytes, "bytes {} to {} of {}", offset,
           offset + nbytes, to.name);
  return to;
}

void ShardWriter::hash(HashedTensor& tensor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const uint64_t chunk = done_ / kChunkNbytes;
    const uint64_t chunk_end = std::min((chunk + 1) * kChunkNbytes, tensor.nbytes);
    const auto part = bytes.first(std::min<uint64_t>(bytes.size(), chunk_end - done_));
    hash_.update(part);
    done_ += part.size();
    bytes = bytes.subspan(part.size());
    if (done_ < chunk_end) continue;
    tensor.hashes[chunk] = hash_.value();
    hash_.reset();
  }
  if (done_ == tensor.nbytes) done_ = 0;
}

void ShardWriter::write(size_t tensor, uint64_t offset, std::span<const std::byte> bytes) {
  HashedTensor& to = next(tensor, offset, bytes.size());
  for (uint64_t at = to.begin + offset; !bytes.empty();) {
    const auto part = bytes.first(std::min<uint64_t>(bytes.size(), kPartNbytes));
    hash(to, part);
    file_.write(at, part);
    at += part.size();
    bytes = bytes.subspan(part.size());
  }
}

// The disk has a block before it is hashed.
void ShardWriter::write_in_place(size_t tensor, uint64_t offset, std::span<const std::byte> bytes) {
  HashedTensor& to = next(tensor, offset, bytes.size());
  for (uint64_t at = to.begin + offset; !bytes.empty();) {
    const uint64_t block = BlockWriter::kBlockNbytes - at % BlockWriter::kBlockNbytes;
    const auto part = bytes.first(std::min<uint64_t>(bytes.size(), block));
    file_.write_in_place(at, part);
    hash(to, part);
    at += part.size();
    bytes = bytes.subspan(part.size());
  }
}

Manifest::ShardFile ShardWriter::finish() {
  ZR_CHECK(done_ == 0, "{} of a tensor's bytes are missing in {}", done_, file_.path().string());
  const std::string header = encode_hashed_header(tensors_);
  file_.write(0, std::as_bytes(std::span(header)));
  file_.finish();
  return {.name = file_.path().filename().string(),
          .nbytes = std::max<uint64_t>(header.size(), length_of(tensors_)),
          .header_nbytes = header.size(),
          .header_hash = hash_of(std::string_view(header))};
}

PreparedSave prepare_save(EngineStates& engine, Communicator& comm, const SaveOptions& options) {
  Stream& stream = engine.device().inline_stream();
  Agreement agreement(comm, stream);
  std::optional<Manifest> manifest;
  std::optional<ShardPlan> plan;
  std::string tag;
  const bool is_first = agreement.rank() == 0;
  agreement.run("save: plan", [&] {
    check_options(options);
    tag = options.tag.empty() ? fmt::format("step{}", engine.progress().step_count) : options.tag;
    check_tag(tag);
    manifest.emplace(make_manifest(engine, options));
    if (is_first) encode_manifest(*manifest);  // throws what it would throw after all is written
    plan.emplace(engine, [frozen_too = !options.exclude_frozen](const ParameterSpec& spec) {
      return frozen_too || spec.trainable;
    });
  });
  uint64_t own = plan->nbytes();
  if (is_first) {
    for (const NamedTensor& buffer : options.buffers) own += buffer.bytes.size();
  }
  Disks disks = options.node_local ? Disks(comm, stream, options.directory) : Disks(comm, stream);
  const int leader = disks.leader_of(agreement.rank());
  const auto id = static_cast<int64_t>(is_first ? new_save_id() : 0);
  const auto all = agreement.gather(std::vector<int64_t>{id, static_cast<int64_t>(own)});
  int64_t needed = 0;  // on this rank's disk
  for (int rank = 0; rank < agreement.world_size(); ++rank) {
    if (disks.leader_of(rank) == leader) needed += all[2 * static_cast<size_t>(rank) + 1];
  }
  SaveFolder folder({options.directory, tag, static_cast<uint64_t>(all.front())},
                    static_cast<uint64_t>(needed));
  agreement.run("save: make folder", [&] {
    if (disks.leads(agreement.rank())) folder.make();
  });
  return {std::move(*manifest), std::move(*plan), std::move(folder), std::move(disks)};
}

// Tensors with the largest elements come first, so that all are aligned to theirs.
std::optional<Manifest::ShardFile> write_buffers(const std::filesystem::path& path,
                                                 std::span<const NamedTensor> buffers) {
  if (buffers.empty()) return std::nullopt;
  std::vector<const NamedTensor*> sorted;
  for (const NamedTensor& buffer : buffers) sorted.push_back(&buffer);
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) {
    return safetensors_size_of(a->dtype) > safetensors_size_of(b->dtype);
  });
  std::vector<HashedTensor> tensors;
  tensors.reserve(sorted.size());
  for (const NamedTensor* buffer : sorted) {
    tensors.push_back({buffer->name, buffer->dtype, buffer->shape, buffer->bytes.size()});
  }
  encode_hashed_header(tensors);  // gives them their places
  ShardWriter writer(path, std::move(tensors));
  for (size_t i = 0; i < sorted.size(); ++i) writer.write(i, 0, sorted[i]->bytes);
  return writer.finish();
}

void commit_save(EngineStates& engine, Communicator& comm, PreparedSave& save,
                 const Manifest::ShardFile& own, const SaveOptions& options) {
  Stream& stream = engine.device().inline_stream();
  Agreement agreement(comm, stream);
  const bool is_first = agreement.rank() == 0;
  const bool leads = save.disks.leads(agreement.rank());
  save.manifest.shards = gather_shards(agreement, save.folder, own);
  if (options.node_local) complete_disks(comm, stream, save);
  // Rank 0's disk comes last: the checkpoint that its `latest` names is on all of them.
  agreement.run("save: commit on other disks", [&] {
    if (leads && !is_first) save.folder.commit(save.manifest, options.update_latest);
  });
  agreement.run("save: commit", [&] {
    if (is_first) save.folder.commit(save.manifest, options.update_latest);
  });
  agreement.run("save: retention", [&] {
    if (leads) save.folder.remove_superfluous(options.keep);
  });
}

uint64_t checkpoint_nbytes(EngineStates& engine) { return ShardPlan(engine).nbytes(); }

void save_checkpoint(EngineStates& engine, Communicator& comm, const SaveOptions& options) {
  Agreement agreement(comm, engine.device().inline_stream());
  PreparedSave save = prepare_save(engine, comm, options);
  const bool is_first = agreement.rank() == 0;
  Manifest::ShardFile own;
  try {
    agreement.run("save: write", [&] {
      try {
        save.folder.check_seen();
        own = write_shard(engine, save, agreement.rank());
        if (is_first) save.manifest.buffers = write_buffers(save.folder.buffers(), options.buffers);
      } catch (const IoError& error) {
        fail<IoError>("{}; {}", error.what(), save.folder.disk_use());
      }
    });
    commit_save(engine, comm, save, own, options);
  } catch (...) {
    if (save.disks.leads(agreement.rank())) save.folder.discard();
    throw;
  }
}

}  // namespace zerorun
