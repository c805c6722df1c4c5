#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "offload/block_io.h"

namespace zerorun {

// Bytes per second.
struct DiskSpeed {
  double read = 0.0;
  double write = 0.0;
};

// Bytes per second of transferring the first `nbytes` of a file once, in blocks of `block` bytes
// from and to `memory`, which is at least one block.
double transfer_rate(BlockIo& io, Transfer direction, std::span<std::byte> memory, size_t block,
                     uint64_t nbytes);

// Of a small file in the folder, written and read as offloaded states are, through at most `memory`
// bytes, or one block. Throws as DirectFile.
DiskSpeed measure_disk(const std::filesystem::path& folder, const AioConfig& aio, size_t memory);

// Whether a disk that gave each of `ranks` ranks this speed at the same time is slower than any
// SSD.
bool is_slow(const DiskSpeed& speed, int ranks);

// What each of `ranks` ranks of a host has in a folder.
struct DiskUse {
  std::filesystem::path folder;
  uint64_t nbytes = 0;
  int ranks = 1;
};
// What to tell the user of one that is slow; `by_default`: with /aio left at its defaults.
std::string slow_disk_advice(const DiskUse& use, const DiskSpeed& speed,
                             const DiskSpeed& by_default);

}  // namespace zerorun
