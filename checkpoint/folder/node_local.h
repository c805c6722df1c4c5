#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "comm/agreement.h"
#include "zerorun/communicator.h"
#include "zerorun/device.h"

namespace zerorun {

// The disks behind the same path on all ranks: one that all ranks see, or one per host. The lowest
// rank that sees a disk is its leader, which creates folders and copies there for all.
class Disks {
 public:
  // For one disk that all ranks see.
  Disks(Communicator& comm, Stream& stream);
  // Detects which ranks see the same disk. Creates the directory if it is missing. Collective.
  Disks(Communicator& comm, Stream& stream, const std::filesystem::path& directory);

  int leader_of(int rank) const { return leaders_[static_cast<size_t>(rank)]; }
  bool leads(int rank) const { return leader_of(rank) == rank; }

  struct Copy {
    std::filesystem::path from;  // on the source
    int source = 0;              // the rank that reads; the same on all ranks, like nbytes
    uint64_t nbytes = 0;         // bytes to copy, from the beginning of the file
    std::filesystem::path to;    // on the ranks that want it
    bool is_wanted = false;      // this rank's disk needs it; only leaders are asked
  };
  // Copies a file between disks. Afterwards the copy is either complete and on the disk, or absent.
  // Collective.
  void copy(const Copy& copy) const;

 private:
  Communicator* comm_;
  Stream* stream_;
  std::vector<int> leaders_;  // by rank
};

// Returns the text of rank `source` on all ranks. Collective.
std::string share_text(Communicator& comm, Stream& stream, const std::string& text, int source);

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
