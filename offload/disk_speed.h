#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "offload/block_io.h"
#include "offload/direct_file.h"

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

// Of a small file in the folder, written and read as offloaded states are. Throws as DirectFile.
DiskSpeed measure_disk(const std::filesystem::path& folder, const AioConfig& aio,
                       const FilePurpose& purpose);

// What to tell the user of a disk that gave each of `ranks` ranks this speed at the same time, and
// in each step reads and writes `nbytes` for each of them; empty unless it is slower than any SSD.
std::string slow_disk_advice(const std::filesystem::path& folder, const DiskSpeed& speed,
                             uint64_t nbytes, int ranks);

}  // namespace zerorun
