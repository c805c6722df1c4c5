#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "checkpoint/folder/disks.h"
#include "checkpoint/format/manifest.h"
#include "comm/agreement.h"

namespace zerorun {

// Checkpoints with use_node_local_storage: each file is on the disk of the host that wrote it. Each
// disk also has the manifest, the file of buffers, and the headers of the files that it lacks.

// Copies headers and buffers to the disks that lack them. `folder` has the files of `manifest`,
// each on some disk. Throws CheckpointError that names files without a header. Collective.
void bring_headers(Agreement& agreement, const Disks& disks, const Manifest& manifest,
                   const std::filesystem::path& folder);

// Copies the files that ranks need; `needed` has one flag per file. All ranks pass the same files.
// Throws CheckpointError that names files that no disk has, with the hosts where they were written.
// Collective.
void bring_files(Agreement& agreement, const Disks& disks,
                 std::span<const Manifest::ShardFile> files, const std::filesystem::path& folder,
                 const std::vector<bool>& needed);

}  // namespace zerorun
