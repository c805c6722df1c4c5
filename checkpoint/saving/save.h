#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/files/block_writer.h"
#include "checkpoint/files/hash.h"
#include "checkpoint/folder/node_local.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/shard_file.h"
#include "checkpoint/saving/save_folder.h"
#include "zerorun/checkpoint.h"

namespace zerorun {

// Writes one file of a checkpoint and computes its hashes.
class ShardWriter {
 public:
  // Creates the file. `tensors`: with their positions. All methods throw IoError.
  ShardWriter(const std::filesystem::path& path, std::vector<HashedTensor> tensors);

  // Writes the tensor's bytes from `offset` on. Tensors, and the parts of a tensor, have to be
  // written in order.
  void write(size_t tensor, uint64_t offset, std::span<const std::byte> bytes);
  // As write(), for bytes that do not change until flush() or finish() returns.
  void write_in_place(size_t tensor, uint64_t offset, std::span<const std::byte> bytes);
  void flush() { file_.flush(); }
  // Writes the header and syncs the file to the disk.
  Manifest::ShardFile finish();

 private:
  // Checks that these bytes are the next ones.
  HashedTensor& next(size_t tensor, uint64_t offset, size_t nbytes);
  void hash(HashedTensor& tensor, std::span<const std::byte> bytes);

  std::vector<HashedTensor> tensors_;
  BlockWriter file_;
  Hash hash_;          // hash of the current chunk
  uint64_t done_ = 0;  // bytes of the current tensor
};

// A save before it is written: all ranks have agreed on it, and rank 0 has created its folder.
struct PreparedSave {
  Manifest manifest;  // without files
  ShardPlan plan;
  SaveFolder folder;
  Disks disks;
};

// Throws ConfigError for unusable options and IoError for errors of the disk; then nothing is left
// behind. Collective.
PreparedSave prepare_save(EngineStates& engine, Communicator& comm, const SaveOptions& options);

// Writes the file of tensors that are not parameters; nullopt if there are none.
std::optional<Manifest::ShardFile> write_buffers(const std::filesystem::path& path,
                                                 std::span<const NamedTensor> buffers);

// Commits a save: its files become the checkpoint of its tag, on every disk. `own`: this rank's
// file. Throws IoError on all ranks; then the caller has to discard the files. Collective.
void commit_save(EngineStates& engine, Communicator& comm, PreparedSave& save,
                 const Manifest::ShardFile& own, const SaveOptions& options);

}  // namespace zerorun
