#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "checkpoint/files/file.h"
#include "checkpoint/files/layout.h"
#include "checkpoint/loading/checkpoint_reader.h"
#include "checkpoint/saving/save.h"
#include "core/check.h"
#include "core/format_bytes.h"
#include "core/printable.h"
#include "tools/ckpt/ckpt_report.h"

namespace zerorun {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

// A line of the list.
struct Entry {
  std::string tag;
  int64_t step = 0;
  std::time_t saved = 0;
  uint64_t nbytes = 0;
  size_t ranks = 0;
  std::string problem;  // why it cannot be loaded
};

std::time_t time_of(const fs::path& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 ? info.st_mtime : 0;
}

// "2026-11-22 23:10:01", on this machine's clock.
std::string text_of_time(std::time_t time) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(time));
}

// All files of the checkpoint's folder, and of its parts.
uint64_t nbytes_of_folder(const fs::path& folder) {
  uint64_t nbytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code ignored;
    const uintmax_t size = it->is_regular_file(ignored) ? it->file_size(ignored) : 0;
    if (!ignored) nbytes += size;
  }
  return nbytes;
}

Entry describe_entry(const fs::path& folder, const std::string& tag) {
  Entry entry{.tag = tag, .saved = time_of(folder / kManifestName), .problem = {}};
  entry.nbytes = nbytes_of_folder(folder);
  try {
    const CheckpointReader checkpoint(folder);
    entry.step = checkpoint.manifest().progress.step_count;
    entry.ranks = checkpoint.manifest().shards.size();
  } catch (const Error& error) {
    entry.problem = error.what();
  }
  return entry;
}

std::vector<Entry> entries_of(const fs::path& directory) {
  std::vector<Entry> entries;
  for (const std::string& tag : list_tags(directory)) {
    entries.push_back(describe_entry(directory / tag, tag));
  }
  if (entries.empty() && entry_exists(directory / kManifestName)) {
    entries.push_back(describe_entry(directory, directory.filename().string()));
  }
  if (entries.empty()) {
    fail<CheckpointError>("{} holds no checkpoints of zerorun", directory.string());
  }
  return entries;
}

// What `latest` says.
struct Latest {
  std::string tag{};
  std::string problem{};  // why no load without a tag finds a checkpoint
};

Latest latest_of(const fs::path& directory) {
  if (entry_exists(directory / kManifestName)) return {};  // a checkpoint itself
  try {
    return {.tag = find_checkpoint(directory, "").filename().string()};
  } catch (const Error& error) {
    return {.problem = error.what()};
  }
}

Json to_json(const Entry& entry) {
  Json json = {{"tag", entry.tag}, {"nbytes", entry.nbytes}, {"saved", entry.saved}};
  if (!entry.problem.empty()) {
    json["problem"] = entry.problem;
  } else {
    json["step"] = entry.step;
    json["ranks"] = entry.ranks;
  }
  return json;
}

}  // namespace

std::string list_checkpoints(const std::string& directory, Format format) {
  const std::vector<Entry> entries = entries_of(directory);
  const Latest latest = latest_of(directory);
  if (format == Format::json) {
    Json json = {{"directory", directory}, {"latest", nullptr}, {"checkpoints", Json::array()}};
    if (!latest.tag.empty()) json["latest"] = latest.tag;
    if (!latest.problem.empty()) json["problem"] = latest.problem;
    for (const Entry& entry : entries) json["checkpoints"].push_back(to_json(entry));
    return json.dump(2, ' ', false, Json::error_handler_t::replace);
  }
  size_t width = 3;
  uint64_t total = 0;
  for (const Entry& entry : entries) {
    width = std::max(width, printable(entry.tag).size());
    total += entry.nbytes;
  }
  std::string text = fmt::format("  {:<{}} {:>10}  {:<19} {:>11} {:>6}\n", "tag", width, "step",
                                 "saved", "size", "ranks");
  for (const Entry& entry : entries) {
    const std::string start =
        fmt::format("{} {:<{}}", entry.tag == latest.tag ? "*" : " ", printable(entry.tag), width);
    text += entry.problem.empty()
                ? fmt::format("{} {:>10}  {} {:>11} {:>6}\n", start, entry.step,
                              text_of_time(entry.saved), format_bytes(entry.nbytes), entry.ranks)
                : fmt::format("{}  cannot be loaded: {}\n", start, printable(entry.problem));
  }
  text += fmt::format("{} in {}{}\n", format_bytes(total), directory,
                      latest.tag.empty() ? "" : "; * is the latest");
  if (!latest.problem.empty()) text += fmt::format("no latest: {}\n", printable(latest.problem));
  return text;
}

std::string prune_checkpoints(const std::string& directory, const Retention& keep, bool dry_run,
                              Format format) {
  entries_of(directory);  // throws if something is wrong with the folder
  if (entry_exists(fs::path(directory) / kManifestName)) {
    fail<ConfigError>(
        "zerorun ckpt prune: {} is a checkpoint itself; expected the folder that holds it",
        directory);
  }
  const std::vector<SavedTag> doomed = superfluous_tags(directory, keep);
  uint64_t total = 0;
  std::string text;
  Json json = {{"directory", directory}, {"dry_run", dry_run}, {"removed", Json::array()}};
  for (const SavedTag& saved : doomed) {
    const uint64_t nbytes = nbytes_of_folder(fs::path(directory) / saved.tag);
    if (!dry_run) remove_checkpoint(directory, saved.tag);
    total += nbytes;
    json["removed"].push_back({{"tag", saved.tag}, {"step", saved.step}, {"nbytes", nbytes}});
    text += fmt::format("{} {}\n", dry_run ? "would remove" : "removed", saved.tag);
  }
  json["nbytes"] = total;
  if (format == Format::json) return json.dump(2, ' ', false, Json::error_handler_t::replace);
  return text + fmt::format("{} checkpoint{}, {}\n", doomed.size(), doomed.size() == 1 ? "" : "s",
                            format_bytes(total));
}

}  // namespace zerorun
