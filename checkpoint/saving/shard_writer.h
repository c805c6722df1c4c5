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
  // The same for bytes that stay as they are until flush() or finish() returns.
  void write_in_place(size_t tensor, uint64_t offset, std::span<const std::byte> bytes);
  void flush() { file_.flush(); }
  // Writes the header and brings all to the disk.
  Manifest::ShardFile finish();

 private:
  // Checks that the bytes come next.
  HashedTensor& next(size_t tensor, uint64_t offset, size_t nbytes);
  void hash(HashedTensor& tensor, std::span<const std::byte> bytes);

  std::vector<HashedTensor> tensors_;
  BlockWriter file_;
  Hash hash_;          // of the current chunk
  uint64_t done_ = 0;  // bytes of the current tensor
};

}  // namespace zerorun
