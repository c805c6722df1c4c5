#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "offload/direct_file.h"
#include "offload/pinned_arena.h"
#include "offload/state_store.h"

namespace zerorun {

struct NvmeOptions {
  std::filesystem::path folder;
  std::string label;  // of the file in messages
  FilePurpose purpose;
  int buffer_count = 4;
  AioConfig aio;
};

// Bytes of the arena, and of the file, that an NVMe store takes.
size_t nvme_staging_nbytes(std::span<const StateLayout> chunks, int buffer_count);
uint64_t nvme_file_nbytes(std::span<const StateLayout> chunks);

using BlockIoFactory = std::function<std::unique_ptr<BlockIo>(
    const OpenFile&, std::span<const std::span<std::byte>> memory)>;

// Stores states in a file. Each chunk passes through one of `buffer_count` staging buffers: reads,
// the caller's stream and writes go on at the same time. Every block has its hash in memory; a
// block that comes back different is an IoError with file and offset. Needs the arena
// page-aligned. Throws ConfigError as DirectFile.
std::unique_ptr<StateStore> make_nvme_state_store(Device& device, PinnedArena& arena,
                                                  std::span<const StateLayout> chunks,
                                                  const NvmeOptions& options,
                                                  const BlockIoFactory& make_io = {});

}  // namespace zerorun
