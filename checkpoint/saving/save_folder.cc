#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "checkpoint/files/file.h"
#include "checkpoint/files/layout.h"
#include "checkpoint/saving/save.h"
#include "core/check.h"
#include "core/log.h"
#include "os/free_space.h"
#include "os/text_file.h"

namespace zerorun {

namespace fs = std::filesystem;

SaveFolder::SaveFolder(Names names, uint64_t needed)
    : names_(std::move(names)),
      needed_(needed),
      temporary_(temporary_path(names_.directory / names_.tag, names_.id)),
      temporary_latest_(temporary_path(names_.directory / kLatestName, names_.id)) {}

fs::path SaveFolder::shard(int rank) const { return temporary_ / shard_name(rank, names_.id); }
fs::path SaveFolder::buffers() const { return temporary_ / buffers_name(names_.id); }

std::string SaveFolder::disk_use() const {
  const std::optional<uint64_t> free = free_space(names_.directory);
  return fmt::format("the checkpoint needs {} bytes, {} {}", needed_, names_.directory.string(),
                     free ? fmt::format("has {} free", *free) : "cannot be read");
}

void SaveFolder::make() {
  create_folders(names_.directory);
  if (names_.tag.starts_with(kPartPrefix)) {  // other parts may be saving beside this one
    remove_leftovers_of(place());
  } else {
    remove_leftovers(names_.directory, names_.id);
  }
  if (free_space(names_.directory).value_or(needed_) < needed_) {
    fail<IoError>("cannot save {}: {}: free some space, or save elsewhere", place().string(),
                  disk_use());
  }
  std::error_code error;
  fs::create_directory(temporary_, error);
  if (error) {
    fail<IoError>("cannot create the folder {}: {}", temporary_.string(), error.message());
  }
}

void SaveFolder::check_seen() const {
  if (path_exists(temporary_)) return;
  fail<IoError>(
      "{} is not where rank 0 made it: all ranks must save to one folder of one file system",
      temporary_.string());
}

void SaveFolder::commit(const Manifest& manifest, bool update_latest) {
  try {
    // All is written before anything is synced, because one sync brings most of it to the disk; and
    // before the checkpoint takes its place: from then on nothing needs space there.
    File table = create_text(temporary_ / kManifestName, encode_manifest(manifest));
    std::optional<File> latest;
    if (update_latest) latest = create_text(temporary_latest_, names_.tag + "\n");
    table.sync();
    if (latest) latest->sync();
    sync_folder(temporary_);
    if (path_exists(place())) {
      replace_tag(manifest);
    } else {
      rename_path(temporary_, place());
    }
    sync_folder(names_.directory);
    if (!update_latest) return;
    rename_path(temporary_latest_, names_.directory / kLatestName);
    sync_folder(names_.directory);
  } catch (const IoError& error) {
    fail<IoError>("{}; {}", error.what(), disk_use());
  }
}

// Moves the files into the tag's folder, whose files have other names. The manifest moves last and
// atomically replaces the old one, on file systems that cannot exchange two folders too.
void SaveFolder::replace_tag(const Manifest& manifest) {
  const fs::path folder = place();
  std::set<std::string> current;
  const auto add = [&](const std::string& name) {
    if (path_exists(temporary_ / name)) current.insert(name);
  };
  for (const Manifest::ShardFile& shard : manifest.shards) {
    add(shard.name);
    add(header_path(shard.name).string());
  }
  if (manifest.buffers) add(manifest.buffers->name);
  const auto remove_shards = [&](bool (*wanted)(bool is_current)) {
    for (const std::string& name : entry_names(folder)) {
      std::error_code ignored;
      const bool ours = is_shard_name(name) || is_header_name(name) || is_buffers_name(name);
      if (ours && wanted(current.contains(name))) fs::remove(folder / name, ignored);
    }
  };
  try {
    for (const std::string& name : current) rename_path(temporary_ / name, folder / name);
    sync_folder(folder);
    rename_path(temporary_ / kManifestName, folder / kManifestName);
  } catch (...) {
    remove_shards([](bool is_current) { return is_current; });
    throw;
  }
  sync_folder(folder);
  remove_shards([](bool is_current) { return !is_current; });
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

void SaveFolder::discard() noexcept {
  std::error_code ignored;  // the first save of the next job tries again
  fs::remove_all(temporary_, ignored);
  fs::remove(temporary_latest_, ignored);
}

void SaveFolder::remove_superfluous(const Retention& keep) const {
  try {
    for (const SavedTag& saved : superfluous_tags(names_.directory, keep)) {
      if (saved.tag != names_.tag) remove_checkpoint(names_.directory, saved.tag);
    }
  } catch (const Error& error) {
    Logger().log(LogLevel::warning, "an old checkpoint stays: {}", error.what());
  }
}

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
