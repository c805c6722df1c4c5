#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/files/block_writer.h"
#include "checkpoint/files/file.h"
#include "checkpoint/folder/node_local.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/shard_file.h"
#include "zerorun/checkpoint.h"
#include "zerorun/device.h"

namespace zerorun {

// The folder of one save. It has a temporary name until its commit, which makes it the checkpoint
// of its tag. All methods throw IoError, which says how much space the disk has. Only rank 0 may
// call methods that change anything.
class SaveFolder {
 public:
  struct Names {
    std::filesystem::path directory;
    std::string tag;
    uint64_t id = 0;  // rank 0's new_save_id(), on all ranks
  };
  // `needed`: the bytes of the files of all ranks.
  SaveFolder(Names names, uint64_t needed);

  const std::filesystem::path& temporary() const { return temporary_; }
  std::filesystem::path shard(int rank) const;
  std::filesystem::path buffers() const;
  std::filesystem::path place() const { return names_.directory / names_.tag; }  // after commit
  uint64_t id() const { return names_.id; }
  // "the checkpoint needs 10 bytes, out has 5 free"
  std::string disk_use() const;

  // Removes unfinished entries of crashed saves, but no folder of a save of this job that is under
  // way, and creates the folder if the disk has space for all files.
  void make();
  // Throws if this rank does not see the folder that rank 0 created.
  void check_seen() const;
  // Commits the save with a single rename, before which the previous checkpoint is unchanged. The
  // files that the manifest lists must be complete.
  void commit(const Manifest& manifest, bool update_latest);
  void discard() noexcept;
  // Removes checkpoints that `keep` does not retain, after the commit. If one cannot be removed,
  // prints a warning.
  void remove_superfluous(const Retention& keep) const;

 private:
  void replace_tag(const Manifest& manifest);

  Names names_;
  uint64_t needed_ = 0;
  std::filesystem::path temporary_;
  std::filesystem::path temporary_latest_;
};

// A checkpoint of a directory, according to its manifest.
struct SavedTag {
  std::string tag;
  int64_t step = 0;
};

// The checkpoints of a directory with intact manifests, by step. Symbolic links are left out.
std::vector<SavedTag> saved_tags(const std::filesystem::path& directory);
// Lists the checkpoints that `keep` does not retain, by step. The checkpoint that `latest` names,
// those that a link in the directory points to, and those that this version cannot read are always
// retained.
std::vector<SavedTag> superfluous_tags(const std::filesystem::path& directory,
                                       const Retention& keep);
// Removes a checkpoint. It is renamed first, so that a crash leaves either the whole checkpoint or
// an unfinished entry that the next save removes. Throws IoError.
void remove_checkpoint(const std::filesystem::path& directory, const std::string& tag);

// A queue of parts of tensors between the thread that copies them and the thread that writes them,
// in one block of memory that is used as a ring. The copying thread waits while it is full. The
// writing thread starts when the memory is full or all pieces are there, so that it does not
// compete for memory and disk while training waits for the copies.
class SnapshotQueue {
 public:
  struct Piece {
    size_t tensor = 0;
    uint64_t offset = 0;  // within the tensor
    std::span<const std::byte> bytes;
    Event copied{};  // the bytes are complete after this event
  };
  // The address of a piece is congruent to its position in the file modulo kAlignment, as direct
  // I/O requires. Pieces that come in the order of the file are adjacent in memory.
  static constexpr size_t kAlignment = 512;
  // The maximum bytes of memory for a tensor of `nbytes` bytes.
  static constexpr uint64_t memory_for(uint64_t nbytes) { return nbytes + kAlignment - 1; }

  // The size of `memory` is a positive multiple of kAlignment.
  explicit SnapshotQueue(std::span<std::byte> memory) : memory_(memory) {}

  // For the copying thread. Waits for memory for bytes of the file from `place` on. Returns at most
  // `wanted` bytes; fewer only up to a multiple of kAlignment in the file; none after close().
  std::span<std::byte> reserve(size_t wanted, uint64_t place);
  // Adds the piece in the memory that was reserved last.
  void push(const Piece& piece);
  // Announces that no more pieces come.
  void finish();

  // For the writing thread. Waits for the next pieces and returns up to kBatchNbytes of them; none
  // after the last one.
  std::vector<Piece> take();
  // Frees the memory of the pieces that were taken, after they were written.
  void release();

  // Ends all waits and drops the pieces in the queue. For any thread.
  void close();

 private:
  struct Stored {
    Piece piece;
    uint64_t end = 0;  // position
  };
  static constexpr size_t kBatchNbytes = size_t{16} << 20;

  void start_draining();
  std::span<std::byte> room(size_t wanted, uint64_t place);

  std::span<std::byte> memory_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Stored> pieces_;
  size_t taken_ = 0;       // pieces taken
  uint64_t begin_ = 0;     // position of the oldest piece; positions never wrap
  uint64_t end_ = 0;       // end of the last piece
  uint64_t reserved_ = 0;  // begin of the next piece
  bool drains_ = false;    // the writing thread has started
  bool finished_ = false;
  bool closed_ = false;
};

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
