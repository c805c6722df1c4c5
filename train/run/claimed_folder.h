#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "train/run/folder_lock.h"
#include "train/run/options.h"

namespace zerorun::train {

// The --save folder of a run, which is the run's own from its start to its end: rank 0 holds a lock
// on it. A folder with the checkpoints of another run is renamed first, so that nothing of it is
// lost.
class ClaimedFolder {
 public:
  ClaimedFolder() = default;  // claims nothing
  // Makes the folder if need be. Throws ConfigError for a folder that holds, or is, something that
  // saving would destroy, and IoError for one that is in use or that cannot be written or renamed.
  ClaimedFolder(const TrainOptions& options, const std::string& job);

  // The new name of the folder that held another run, else empty.
  const std::string& moved_to() const { return moved_to_; }
  // Throws IoError when the disk has no room for so many bytes.
  void check_room(uint64_t nbytes) const;

 private:
  void check_other_options(const TrainOptions& options) const;
  void check_content() const;
  void move_away(const std::string& job);

  std::string given_;           // --save as it was written
  std::filesystem::path path_;  // without links
  std::string moved_to_;
  FolderLock lock_;
};

// A name that the ranks of one job have in common, over its restarts; empty when it has none.
std::string job_name();
// True for a run that its launcher has started again, after a checkpoint of the same job in --save.
bool continues_after_restart(const TrainOptions& options, const std::string& job);

}  // namespace zerorun::train
