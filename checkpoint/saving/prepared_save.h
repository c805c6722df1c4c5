#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

#include "checkpoint/folder/disks.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/shard_file.h"
#include "checkpoint/saving/save_folder.h"
#include "zerorun/checkpoint.h"

namespace zerorun {

// A save that all ranks have agreed on and that rank 0 has made a folder for, before it writes.
struct PreparedSave {
  Manifest manifest;  // without files
  ShardPlan plan;
  SaveFolder folder;
  Disks disks;
};

// Collective. Throws ConfigError for options that cannot be followed, IoError for a disk; then
// nothing is left behind.
PreparedSave prepare_save(EngineStates& engine, Communicator& comm, const SaveOptions& options);

// Writes the file of tensors besides the model's; nothing when there are none.
std::optional<Manifest::ShardFile> write_buffers(const std::filesystem::path& path,
                                                 std::span<const NamedTensor> buffers);

}  // namespace zerorun
