#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "checkpoint/format/manifest.h"
#include "zerorun/checkpoint.h"

namespace zerorun {

// The folder of one save: temporary until its commit, which makes it the checkpoint of its tag.
// All methods throw IoError that says what the disk has room for. Methods that change anything are
// for rank 0.
class SaveFolder {
 public:
  struct Names {
    std::filesystem::path directory;
    std::string tag;
    uint64_t id = 0;  // random, the same on all ranks
  };
  // `needed`: bytes of the files of all ranks.
  SaveFolder(Names names, uint64_t needed);

  const std::filesystem::path& temporary() const { return temporary_; }
  std::filesystem::path shard(int rank) const;
  std::filesystem::path buffers() const;
  std::filesystem::path place() const { return names_.directory / names_.tag; }  // once committed
  uint64_t id() const { return names_.id; }
  // "the checkpoint needs 10 bytes, out has 5 free"
  std::string disk_use() const;

  // Removes what crashed saves left, and makes the folder if the disk has room for all files.
  void make();
  // Throws when this rank does not see what rank 0 made.
  void check_seen() const;
  // Until the rename in here, the previous checkpoint is the current one; from then on, the new.
  // The files that the manifest lists must be complete.
  void commit(const Manifest& manifest, bool update_latest);
  void discard() noexcept;
  // After the commit. What cannot be removed stays, with a warning.
  void remove_superfluous(const Retention& keep) const;

 private:
  void replace_tag(const Manifest& manifest);

  Names names_;
  uint64_t needed_ = 0;
  std::filesystem::path temporary_;
  std::filesystem::path temporary_latest_;
};

}  // namespace zerorun
