#include "checkpoint/folder/retention.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <system_error>

#include "checkpoint/files/file.h"
#include "checkpoint/files/layout.h"
#include "checkpoint/format/manifest.h"
#include "core/check.h"
#include "os/text_file.h"

namespace zerorun {

namespace fs = std::filesystem;

namespace {

// The Python package keeps this beside a checkpoint: "optimizer_shards.<tag>.<hexadecimal digits>".
bool belongs_to(std::string_view name, const std::string& tag) {
  const std::string prefix = fmt::format("optimizer_shards.{}.", tag);
  return name.starts_with(prefix) && name.size() > prefix.size() &&
         name.substr(prefix.size()).find_first_not_of("0123456789abcdef") == name.npos;
}

// Names of folders in `directory` that links there lead to.
std::set<std::string> linked(const fs::path& directory, const std::vector<std::string>& tags) {
  std::set<std::string> names;
  std::error_code error;
  const fs::path own = fs::canonical(directory, error);
  for (const std::string& tag : tags) {
    if (!fs::is_symlink(directory / tag, error)) continue;
    const fs::path target = fs::canonical(directory / tag, error);
    if (!error && target.parent_path() == own) names.insert(target.filename().string());
  }
  return names;
}

// Takes the folder away from its name, then removes it. Others may do the same meanwhile: a run's
// own retention, a save that clears leftovers away.
void remove_folder(const fs::path& folder) {
  const fs::path doomed = temporary_path(folder, random_id());
  std::error_code error;
  fs::rename(folder, doomed, error);
  if (error == std::errc::no_such_file_or_directory && !path_exists(folder)) return;
  if (error) fail<IoError>("cannot remove {}: {}", folder.string(), error.message());
  do {  // an entry that another process has removed first ends a walk
    fs::remove_all(doomed, error);
  } while (error == std::errc::no_such_file_or_directory);
  if (error) fail<IoError>("cannot remove {}: {}", doomed.string(), error.message());
}

}  // namespace

std::vector<SavedTag> saved_tags(const fs::path& directory) {
  std::vector<SavedTag> saved;
  for (const std::string& tag : list_tags(directory)) {
    std::error_code ignored;
    if (fs::is_symlink(directory / tag, ignored)) continue;
    const fs::path path = directory / tag / kManifestName;
    try {
      const Manifest manifest = decode_manifest(read_text(path, kMaxManifestNbytes), path.string());
      saved.push_back({tag, manifest.progress.step_count});
    } catch (const Error&) {
      continue;
    }
  }
  std::stable_sort(saved.begin(), saved.end(),
                   [](const SavedTag& a, const SavedTag& b) { return a.step < b.step; });
  return saved;
}

std::vector<SavedTag> superfluous_tags(const fs::path& directory, const Retention& keep) {
  if (keep.last <= 0) return {};
  std::vector<SavedTag> tags = saved_tags(directory);
  tags.resize(tags.size() - std::min(tags.size(), static_cast<size_t>(keep.last)));
  const std::string latest =
      entry_exists(directory / kLatestName) ? read_latest(directory) : std::string();
  const std::set<std::string> named = linked(directory, list_tags(directory));
  std::erase_if(tags, [&](const SavedTag& saved) {
    return saved.tag == latest || named.contains(saved.tag) ||
           (keep.every > 0 && saved.step % keep.every == 0);
  });
  return tags;
}

void remove_checkpoint(const fs::path& directory, const std::string& tag) {
  check_tag(tag);
  remove_folder(directory / tag);
  for (const std::string& name : entry_names(directory)) {
    if (belongs_to(name, tag)) remove_folder(directory / name);
  }
  sync_folder(directory);
}

}  // namespace zerorun
