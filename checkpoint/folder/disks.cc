#include "checkpoint/folder/disks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <system_error>

#include "checkpoint/files/file.h"
#include "checkpoint/files/layout.h"
#include "comm/agreement.h"
#include "core/check.h"

namespace zerorun {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kBlockNbytes = uint64_t{16} << 20;

void broadcast(Communicator& comm, Stream& stream, std::span<std::byte> bytes, int root) {
  const TensorView view{bytes.data(), static_cast<int64_t>(bytes.size()), DType::uint8};
  comm.broadcast(view, root, stream, "file of a checkpoint").synchronize();
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

}  // namespace zerorun
