#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "zerorun/communicator.h"
#include "zerorun/device.h"

namespace zerorun {

// The disks behind one path on all ranks: one that all see, or one for each host. The lowest rank
// that sees a disk is its leader, who makes folders and copies there for all.
class Disks {
 public:
  // All ranks see one disk.
  Disks(Communicator& comm, Stream& stream);
  // Collective. Finds out which ranks see the same. Makes the directory where it is missing.
  Disks(Communicator& comm, Stream& stream, const std::filesystem::path& directory);

  int leader_of(int rank) const { return leaders_[static_cast<size_t>(rank)]; }
  bool leads(int rank) const { return leader_of(rank) == rank; }

  struct Copy {
    std::filesystem::path from;  // on the source
    int source = 0;              // the same on all ranks, as is nbytes
    uint64_t nbytes = 0;         // from its beginning on
    std::filesystem::path to;    // where it is wanted
    bool is_wanted = false;      // on this rank's disk; only leaders are asked
  };
  // Collective. The copy is complete, and on the disk, or not there.
  void copy(const Copy& copy) const;

 private:
  Communicator* comm_;
  Stream* stream_;
  std::vector<int> leaders_;  // by rank
};

// Collective. A text of rank `source` on all ranks.
std::string share_text(Communicator& comm, Stream& stream, const std::string& text, int source);

}  // namespace zerorun
