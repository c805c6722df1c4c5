#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "zerorun/checkpoint.h"

namespace zerorun {

// A checkpoint of a directory, as far as its manifest says.
struct SavedTag {
  std::string tag;
  int64_t step = 0;
};

// The checkpoints of a directory whose manifests are intact, by step. Links are none of their own.
std::vector<SavedTag> saved_tags(const std::filesystem::path& directory);
// Lists those of them that a rule does not keep, by step. What `latest` names stays, and so do
// those that a link in the directory leads to, and what no zerorun of this version can read.
std::vector<SavedTag> superfluous_tags(const std::filesystem::path& directory,
                                       const Retention& keep);
// Removes a checkpoint: first its name, so that a crash leaves all of it or what the next save
// clears away. Throws IoError.
void remove_checkpoint(const std::filesystem::path& directory, const std::string& tag);

}  // namespace zerorun
