#include "checkpoint/folder/node_local.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "checkpoint/files/file.h"
#include "checkpoint/files/layout.h"
#include "comm/agreement.h"
#include "core/check.h"
#include "core/log.h"
#include "os/text_file.h"
#include "os/whole_file.h"
#include "zerorun/checkpoint.h"

namespace zerorun {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kBlockNbytes = uint64_t{16} << 20;

void broadcast(Communicator& comm, Stream& stream, std::span<std::byte> bytes, int root) {
  const TensorView view{bytes.data(), static_cast<int64_t>(bytes.size()), DType::uint8};
  comm.broadcast(view, root, stream, "file of a checkpoint").synchronize();
}

// A word of every rank for each file: words[file][rank].
std::vector<std::vector<int64_t>> words_of_all(Agreement& agreement,
                                               const std::vector<int64_t>& own) {
  const std::vector<int64_t> all = agreement.gather(own);
  std::vector<std::vector<int64_t>> words(own.size());
  for (size_t i = 0; i < all.size(); ++i) words[i % own.size()].push_back(all[i]);
  return words;
}

// The lowest rank for whose word `is_wanted` holds.
template <typename Wanted>
std::optional<int> first(const std::vector<int64_t>& words, const Wanted& is_wanted) {
  const auto found = std::ranges::find_if(words, is_wanted);
  if (found == words.end()) return std::nullopt;
  return static_cast<int>(found - words.begin());
}

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

// What a rank's own disk has to load.
struct Finding {
  std::string name;   // of the checkpoint's folder; empty: the directory itself
  std::string text;   // its manifest
  int64_t step = -1;  // -1: nothing
};

Finding find_on_own_disk(const std::string& directory, const std::string& tag) {
  fs::path found;
  try {
    found = find_checkpoint(directory, tag);
  } catch (const CheckpointError&) {
    return {};  // another rank may have it
  }
  Finding own;
  if (found != fs::canonical(directory)) own.name = found.filename().string();
  const fs::path path = found / kManifestName;
  own.text = read_text(path, kMaxManifestNbytes);
  own.step = decode_manifest(own.text, path.string()).progress.step_count;
  return own;
}

// One rank's finding, on all ranks.
struct Shared {
  int rank = 0;
  fs::path folder;
  std::string text;
  Manifest manifest;
};

Shared share_finding(Communicator& comm, Stream& stream, const Finding& own,
                     const std::string& directory, int source) {
  const std::string name = share_text(comm, stream, own.name, source);
  Shared shared{.rank = source,
                .folder = name.empty() ? fs::path(directory) : fs::path(directory) / name,
                .text = share_text(comm, stream, own.text, source)};
  shared.manifest = decode_manifest(shared.text, (shared.folder / kManifestName).string());
  return shared;
}

// The lowest rank of each step after `step`, the last step first.
std::vector<int> ranks_after(const std::vector<int64_t>& steps, int64_t step) {
  std::map<int64_t, int, std::greater<>> ranks;
  for (size_t rank = 0; rank < steps.size(); ++rank) {
    if (steps[rank] > step) ranks.emplace(steps[rank], static_cast<int>(rank));
  }
  std::vector<int> found;
  found.reserve(ranks.size());
  for (const auto& [_, rank] : ranks) found.push_back(rank);
  return found;
}

// Files of a checkpoint that no rank sees.
std::vector<std::string> missing_files(Agreement& agreement, const Shared& shared) {
  std::vector<int64_t> own;
  for (const Manifest::ShardFile& file : shared.manifest.shards) {
    own.push_back(path_exists(shared.folder / file.name) ? 1 : 0);
  }
  const auto words = words_of_all(agreement, own);
  std::vector<std::string> missing;
  for (size_t i = 0; i < own.size(); ++i) {
    if (first(words[i], [](int64_t word) { return word != 0; })) continue;
    missing.push_back(describe(shared.manifest.shards[i]));
  }
  return missing;
}

void tell_newer(const Logger& logger, const Shared& newer, const Shared& older,
                const std::vector<std::string>& missing) {
  const auto name = [](const Shared& shared) {
    return fmt::format("{} (step {})", shared.folder.filename().string(),
                       shared.manifest.progress.step_count);
  };
  if (missing.empty()) {
    logger.warning("rank {}'s host has {}, that of a lower rank only {}: the newer one is loaded",
                   newer.rank, name(newer), name(older));
  } else {
    logger.warning("rank {}'s host has {}, but no rank of this job finds {}: {} is loaded",
                   newer.rank, name(newer), fmt::join(missing, ", "), name(older));
  }
}

}  // namespace

Disks::Disks(Communicator& comm, Stream& stream)
    : comm_(&comm), stream_(&stream), leaders_(static_cast<size_t>(comm.world_size()), 0) {}

// Every rank leaves a mark, and looks for the lowest one that it sees.
Disks::Disks(Communicator& comm, Stream& stream, const fs::path& directory)
    : comm_(&comm), stream_(&stream) {
  Agreement agreement(comm, stream);
  const auto id = static_cast<uint64_t>(
      agreement.broadcast(agreement.rank() == 0 ? static_cast<int64_t>(random_id()) : 0));
  const auto mark_of = [&](int rank) {
    return temporary_path(directory / fmt::format("rank{}", rank), id);
  };
  agreement.run("disks: mark", [&] {
    create_folders(directory);
    File::create(mark_of(agreement.rank()));
  });
  int64_t leader = 0;
  while (leader < agreement.rank() && !path_exists(mark_of(static_cast<int>(leader)))) ++leader;
  for (const int64_t each : agreement.gather(std::span(&leader, 1))) {
    leaders_.push_back(static_cast<int>(each));
  }
  std::error_code ignored;  // the next save removes it
  fs::remove(mark_of(agreement.rank()), ignored);
}

void Disks::copy(const Copy& copy) const {
  Agreement agreement(*comm_, *stream_);
  const bool gives = agreement.rank() == copy.source;
  const bool takes = copy.is_wanted && leads(agreement.rank());
  const fs::path unfinished = temporary_path(copy.to, random_id());
  std::optional<File> file;
  std::vector<std::byte> block(std::min(copy.nbytes, kBlockNbytes));
  try {
    agreement.run("copy: open", [&] {
      if (gives) file = File::open_to_read(copy.from);
      if (takes) file = File::create(unfinished);
    });
    for (uint64_t at = 0; at < copy.nbytes; at += block.size()) {
      const auto part = std::span(block).first(std::min<uint64_t>(block.size(), copy.nbytes - at));
      agreement.run("copy: read", [&] {
        if (!gives || file->read(at, part) == part.size()) return;
        fail<CheckpointError>("{}: ends before byte {}", copy.from.string(), at + part.size());
      });
      broadcast(*comm_, *stream_, part, copy.source);
      agreement.run("copy: write", [&] {
        if (takes) file->write(at, part);
      });
    }
    agreement.run("copy: finish", [&] {
      if (!takes) return;
      file->sync();
      rename_path(unfinished, copy.to);
      sync_folder(copy.to.parent_path());
    });
  } catch (...) {
    std::error_code ignored;
    if (takes) fs::remove(unfinished, ignored);
    throw;
  }
}

std::string share_text(Communicator& comm, Stream& stream, const std::string& text, int source) {
  const bool gives = comm.rank() == source;
  const auto nbytes = gives ? static_cast<int64_t>(text.size()) : int64_t{0};
  Agreement agreement(comm, stream);
  std::string all(static_cast<size_t>(agreement.reduce(nbytes, ReduceOp::max)), '\0');
  if (gives) all = text;
  if (!all.empty()) {
    broadcast(comm, stream, std::as_writable_bytes(std::span(all)), source);
  }
  return all;
}

void bring_headers(Agreement& agreement, const Disks& disks, const Manifest& manifest,
                   const fs::path& folder) {
  std::vector<Manifest::ShardFile> files = manifest.shards;
  if (manifest.buffers) files.push_back(*manifest.buffers);
  std::vector<int64_t> own;
  for (const Manifest::ShardFile& file : files) {
    const bool header = path_exists(header_path(folder / file.name));
    own.push_back(path_exists(folder / file.name) ? kFile : header ? kHeader : kNothing);
  }
  const auto found = words_of_all(agreement, own);
  std::vector<std::string> missing;
  for (size_t i = 0; i < files.size(); ++i) {
    if (!first(found[i], [](int64_t word) { return word == kNothing; })) continue;
    const bool is_whole = i == manifest.shards.size();
    const auto source = first(
        found[i], [&](int64_t word) { return word == kFile || (word == kHeader && !is_whole); });
    if (!source) {
      missing.push_back(describe(files[i]));
      continue;
    }
    const fs::path path = folder / files[i].name;
    const fs::path header = header_path(path);
    disks.copy({.from = found[i][static_cast<size_t>(*source)] == kFile ? path : header,
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
  const auto words = words_of_all(agreement, own);
  std::vector<std::pair<size_t, int>> copies;  // file, source
  std::vector<std::string> missing;
  for (size_t i = 0; i < needed.size(); ++i) {
    if (!first(words[i], needs)) continue;
    const auto source = first(words[i], [](int64_t word) { return word == kHas; });
    if (source) copies.emplace_back(i, *source);
    if (!source) missing.push_back(describe(files[i]));
  }
  if (!missing.empty()) fail_missing(folder, missing);
  const int leader = disks.leader_of(agreement.rank());
  for (const auto& [i, source] : copies) {
    const fs::path path = folder / files[i].name;
    bool is_wanted = false;  // by a rank that sees this rank's disk
    for (int rank = 0; rank < agreement.world_size(); ++rank) {
      is_wanted |= disks.leader_of(rank) == leader && needs(words[i][static_cast<size_t>(rank)]);
    }
    disks.copy({.from = path,
                .source = source,
                .nbytes = files[i].nbytes,
                .to = path,
                .is_wanted = is_wanted});
  }
}

std::string share_checkpoint(EngineStates& engine, Communicator& comm, const std::string& directory,
                             const std::string& tag) {
  Stream& stream = engine.device().inline_stream();
  Agreement agreement(comm, stream);
  Finding own;
  agreement.run("load: find", [&] {
    if (!tag.empty()) check_tag(tag);
    own = find_on_own_disk(directory, tag);
  });
  const std::vector<int64_t> steps = agreement.gather(std::span(&own.step, 1));
  const auto lowest =
      std::find_if(steps.begin(), steps.end(), [](int64_t step) { return step >= 0; });
  if (lowest == steps.end()) return {};
  const auto share = [&](int rank) { return share_finding(comm, stream, own, directory, rank); };
  Shared chosen = share(static_cast<int>(lowest - steps.begin()));
  // A host that was away has an older `latest` than those that went on without it.
  for (const int rank : tag.empty() ? ranks_after(steps, *lowest) : std::vector<int>()) {
    Shared newer = share(rank);
    const std::vector<std::string> missing = missing_files(agreement, newer);
    tell_newer(Logger(comm.rank(), comm.world_size()), newer, chosen, missing);
    if (!missing.empty()) continue;
    chosen = std::move(newer);
    break;
  }
  const Disks disks(comm, stream, directory);
  const fs::path path = chosen.folder / kManifestName;
  agreement.run("load: make folder", [&] {
    create_folders(chosen.folder);
    if (!path_exists(path) || read_text(path, kMaxManifestNbytes) == chosen.text) return;
    fail<CheckpointError>(
        "{} is of another save than the checkpoint of that name which rank {}'s host has and the "
        "job is to load: move it away, or load another tag",
        chosen.folder.string(), chosen.rank);
  });
  bring_headers(agreement, disks, chosen.manifest, chosen.folder);
  agreement.run("load: keep tables", [&] {  // last: by it a folder is a checkpoint
    if (disks.leads(agreement.rank()) && !path_exists(path)) write_whole_file(path, chosen.text);
  });
  return chosen.folder.string();
}

}  // namespace zerorun
