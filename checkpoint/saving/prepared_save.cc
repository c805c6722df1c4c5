#include "checkpoint/saving/prepared_save.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/files/layout.h"
#include "checkpoint/format/hashed_header.h"
#include "checkpoint/format/json_reader.h"
#include "checkpoint/format/safetensors_format.h"
#include "checkpoint/saving/shard_writer.h"
#include "comm/agreement.h"
#include "core/check.h"

namespace zerorun {

namespace {

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

}  // namespace

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

}  // namespace zerorun
