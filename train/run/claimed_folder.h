#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "train/run/folder_lock.h"
#include "train/run/options.h"

namespace zerorun::train {

// The --save folder of a run. Rank 0 holds a lock on it as long as the run lasts. A folder with
// checkpoints of another run is renamed first, so that nothing is lost.
class ClaimedFolder {
 public:
  ClaimedFolder() = default;  // claims nothing
  // Creates the folder if necessary. Throws ConfigError if saving would destroy other content of
  // the folder, and IoError if the folder is in use or cannot be written or renamed.
  ClaimedFolder(const TrainOptions& options, const std::string& job);

  // Returns the new name of the folder that contained another run, else "".
  const std::string& moved_to() const { return moved_to_; }
  // Throws IoError if the disk has less free space than `nbytes`.
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

// Returns a name that all ranks of a job share, also after restarts; "" if the job has none.
std::string job_name();
// True if the launcher has restarted this run and --save has a checkpoint of the same job.
bool continues_after_restart(const TrainOptions& options, const std::string& job);

}  // namespace zerorun::train
