#include "checkpoint/saving/commit.h"

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "checkpoint/files/layout.h"
#include "checkpoint/folder/node_local.h"
#include "comm/agreement.h"
#include "os/process_identity.h"

namespace zerorun {

namespace {

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

}  // namespace

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

}  // namespace zerorun
