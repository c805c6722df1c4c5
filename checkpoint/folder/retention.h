#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "zerorun/checkpoint.h"

namespace zerorun {

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
