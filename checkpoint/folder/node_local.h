#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "checkpoint/folder/disks.h"
#include "checkpoint/format/manifest.h"
#include "comm/agreement.h"

namespace zerorun {

// Checkpoints whose files lie where they were written, on the disks of several hosts. Beside them
// each disk has the manifest, the file of buffers, and the headers of the files that it lacks.

// Collective. Brings headers and buffers to the disks that lack them; `folder` holds the files of
// `manifest`, each on some disk. Throws CheckpointError naming files of which there is no header.
void bring_headers(Agreement& agreement, const Disks& disks, const Manifest& manifest,
                   const std::filesystem::path& folder);

// Collective. The same for the files that ranks need, one flag for each; all ranks name the same
// files. Throws CheckpointError naming those that no disk has, with the hosts where they were
// written.
void bring_files(Agreement& agreement, const Disks& disks,
                 std::span<const Manifest::ShardFile> files, const std::filesystem::path& folder,
                 const std::vector<bool>& needed);

}  // namespace zerorun
