#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/files/block_writer.h"
#include "checkpoint/files/hash.h"
#include "checkpoint/format/hashed_header.h"
#include "checkpoint/format/manifest.h"

namespace zerorun {

// Writes one file of a checkpoint, hashing what it writes.
class ShardWriter {
 public:
  // Creates the file. `tensors`: with their places. Throws IoError, as all methods do.
  ShardWriter(const std::filesystem::path& path, std::vector<HashedTensor> tensors);

  // The tensor's bytes from `offset` on. The pieces of a tensor come in order and before those of
  // another.
  void write(size_t tensor, uint64_t offset, std::span<const std::byte> bytes);
  // Writes the header and brings all to the disk.
  Manifest::ShardFile finish();

 private:
  std::vector<HashedTensor> tensors_;
  BlockWriter file_;
  Hash hash_;          // of the current chunk
  uint64_t done_ = 0;  // bytes of the current tensor
};

}  // namespace zerorun
