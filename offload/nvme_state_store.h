#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "offload/direct_file.h"
#include "offload/pinned_arena.h"
#include "offload/state_store.h"

namespace zerorun {

struct NvmeOptions {
  std::filesystem::path folder;
  std::string label;  // the file's name in errors
  FilePurpose purpose;
  int buffer_count = 4;
  AioConfig aio;
};

// The bytes of the arena, and of the file, that an NVMe store uses.
size_t nvme_staging_nbytes(std::span<const StateLayout> chunks, int buffer_count);
uint64_t nvme_file_nbytes(std::span<const StateLayout> chunks);

using BlockIoFactory = std::function<std::unique_ptr<BlockIo>(
    const OpenFile&, std::span<const std::span<std::byte>> memory)>;

// Makes a store of states in a file. Each chunk is read into and written from one of `buffer_count`
// staging buffers; reads, the caller's stream and writes overlap. The hash of each block is kept in
// memory. If a block that is read has another hash, that is an IoError with file and offset. The
// arena has to be page-aligned. Throws ConfigError like DirectFile.
std::unique_ptr<StateStore> make_nvme_state_store(Device& device, PinnedArena& arena,
                                                  std::span<const StateLayout> chunks,
                                                  const NvmeOptions& options,
                                                  const BlockIoFactory& make_io = {});

}  // namespace zerorun
