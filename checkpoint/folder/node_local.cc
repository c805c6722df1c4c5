#include "checkpoint/folder/node_local.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "checkpoint/files/file.h"
#include "checkpoint/files/layout.h"
#include "core/check.h"
#include "os/text_file.h"
#include "os/whole_file.h"
#include "zerorun/checkpoint.h"

namespace zerorun {

namespace fs = std::filesystem;

namespace {

// One word of every rank for each file, in a table.
class Words {
 public:
  Words(Agreement& agreement, const std::vector<int64_t>& own)
      : ranks_(agreement.world_size()), files_(own.size()), all_(agreement.gather(own)) {}

  int64_t of(int rank, size_t file) const {
    return all_[static_cast<size_t>(rank) * files_ + file];
  }
  // The lowest rank for whose word `is_wanted` holds.
  template <typename Wanted>
  std::optional<int> first(size_t file, const Wanted& is_wanted) const {
    for (int rank = 0; rank < ranks_; ++rank) {
      if (is_wanted(of(rank, file))) return rank;
    }
    return std::nullopt;
  }
  // True if it holds for a rank that sees the same disk.
  template <typename Wanted>
  bool any_beside(const Disks& disks, int leader, size_t file, const Wanted& is_wanted) const {
    for (int rank = 0; rank < ranks_; ++rank) {
      if (disks.leader_of(rank) == leader && is_wanted(of(rank, file))) return true;
    }
    return false;
  }

 private:
  const int ranks_;
  const size_t files_;
  const std::vector<int64_t> all_;
};

[[noreturn]] void fail_missing(const fs::path& folder, const std::vector<std::string>& files) {
  fail<CheckpointError>(
      "{}: no rank of this job finds {}: start a rank on every host that saved, or save to a file "
      "system that all share",
      folder.string(), fmt::join(files, ", "));
}

std::string describe(const Manifest::ShardFile& file) {
  if (file.host.empty()) return file.name;
  return fmt::format("{} (written on {})", file.name, file.host);
}

enum Found : int64_t { kNothing, kHeader, kFile };

}  // namespace

void bring_headers(Agreement& agreement, const Disks& disks, const Manifest& manifest,
                   const fs::path& folder) {
  std::vector<Manifest::ShardFile> files = manifest.shards;
  if (manifest.buffers) files.push_back(*manifest.buffers);
  std::vector<int64_t> own;
  for (const Manifest::ShardFile& file : files) {
    const bool header = path_exists(header_path(folder / file.name));
    own.push_back(path_exists(folder / file.name) ? kFile : header ? kHeader : kNothing);
  }
  const Words found(agreement, own);
  std::vector<std::string> missing;
  for (size_t i = 0; i < files.size(); ++i) {
    if (!found.first(i, [](int64_t word) { return word == kNothing; })) continue;
    const bool is_whole = i == manifest.shards.size();
    const auto source = found.first(
        i, [&](int64_t word) { return word == kFile || (word == kHeader && !is_whole); });
    if (!source) {
      missing.push_back(describe(files[i]));
      continue;
    }
    const fs::path path = folder / files[i].name;
    const fs::path header = header_path(path);
    disks.copy({.from = found.of(*source, i) == kFile ? path : header,
                .source = *source,
                .nbytes = is_whole ? files[i].nbytes : files[i].header_nbytes,
                .to = is_whole ? path : header,
                .is_wanted = own[i] == kNothing});
  }
  if (!missing.empty()) fail_missing(folder, missing);
}

void bring_files(Agreement& agreement, const Disks& disks,
                 std::span<const Manifest::ShardFile> files, const fs::path& folder,
                 const std::vector<bool>& needed) {
  constexpr int64_t kHas = 1;
  constexpr int64_t kNeeds = 2;
  std::vector<int64_t> own;
  for (size_t i = 0; i < needed.size(); ++i) {
    own.push_back(path_exists(folder / files[i].name) ? kHas : needed[i] ? kNeeds : 0);
  }
  const auto needs = [](int64_t word) { return word == kNeeds; };
  const Words words(agreement, own);
  std::vector<std::pair<size_t, int>> copies;  // file, source
  std::vector<std::string> missing;
  for (size_t i = 0; i < needed.size(); ++i) {
    if (!words.first(i, needs)) continue;
    const auto source = words.first(i, [](int64_t word) { return word == kHas; });
    if (source) copies.emplace_back(i, *source);
    if (!source) missing.push_back(describe(files[i]));
  }
  if (!missing.empty()) fail_missing(folder, missing);
  const int leader = disks.leader_of(agreement.rank());
  for (const auto& [i, source] : copies) {
    const fs::path path = folder / files[i].name;
    disks.copy({.from = path,
                .source = source,
                .nbytes = files[i].nbytes,
                .to = path,
                .is_wanted = words.any_beside(disks, leader, i, needs)});
  }
}

std::string share_checkpoint(EngineStates& engine, Communicator& comm, const std::string& directory,
                             const std::string& tag) {
  Stream& stream = engine.device().inline_stream();
  Agreement agreement(comm, stream);
  std::string name;
  fs::path own;
  agreement.run("load: find", [&] {
    if (!tag.empty()) check_tag(tag);
    try {
      own = find_checkpoint(directory, tag);
    } catch (const CheckpointError&) {
      return;  // another rank may have it
    }
    if (own != fs::canonical(directory)) name = own.filename().string();
  });
  const int none = agreement.world_size();
  const auto source =
      static_cast<int>(agreement.reduce(own.empty() ? none : agreement.rank(), ReduceOp::min));
  if (source == none) return {};
  name = share_text(comm, stream, name, source);
  const fs::path folder = name.empty() ? fs::path(directory) : fs::path(directory) / name;
  const fs::path path = folder / kManifestName;
  std::string text;
  agreement.run("load: read", [&] {
    if (agreement.rank() == source) text = read_text(path, kMaxManifestNbytes);
  });
  text = share_text(comm, stream, text, source);
  std::optional<Manifest> manifest;
  agreement.run("load: tables", [&] { manifest = decode_manifest(text, path.string()); });
  const Disks disks(comm, stream, directory);
  agreement.run("load: make folder", [&] { create_folders(folder); });
  bring_headers(agreement, disks, *manifest, folder);
  agreement.run("load: keep tables", [&] {  // last: by it a folder is a checkpoint
    if (disks.leads(agreement.rank()) && !path_exists(path)) write_whole_file(path, text);
  });
  return folder.string();
}

}  // namespace zerorun
