#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

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

}  // namespace zerorun
