#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

#include "checkpoint/folder/node_local.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/shard_file.h"
#include "checkpoint/saving/save_folder.h"
#include "zerorun/checkpoint.h"

namespace zerorun {

// A save before it is written: all ranks have agreed on it, and rank 0 has created its folder.
struct PreparedSave {
  Manifest manifest;  // without files
  ShardPlan plan;
  SaveFolder folder;
  Disks disks;
};

// Throws ConfigError for unusable options and IoError for errors of the disk; then nothing is left
// behind. Collective.
PreparedSave prepare_save(EngineStates& engine, Communicator& comm, const SaveOptions& options);

// Writes the file of tensors that are not parameters; nullopt if there are none.
std::optional<Manifest::ShardFile> write_buffers(const std::filesystem::path& path,
                                                 std::span<const NamedTensor> buffers);

// Commits a save: its files become the checkpoint of its tag, on every disk. `own`: this rank's
// file. Throws IoError on all ranks; then the caller has to discard the files. Collective.
void commit_save(EngineStates& engine, Communicator& comm, PreparedSave& save,
                 const Manifest::ShardFile& own, const SaveOptions& options);

}  // namespace zerorun
