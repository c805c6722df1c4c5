#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "zerorun/checkpoint.h"

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

}  // namespace zerorun
