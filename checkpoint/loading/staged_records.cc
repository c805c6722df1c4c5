#include "checkpoint/loading/staged_records.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "offload/block_io.h"

namespace zerorun {

void StagedRecords::read(std::span<const Record* const> kept,
                         std::span<const Record* const> passing, const Room& room, ReadPath path,
                         Workers& workers) {
  const std::vector<RecordRun> runs = runs_of(kept);
  std::vector<std::span<std::byte>> memory;
  uint64_t taken = 0;
  for (const RecordRun& run : runs) {
    taken += run.nbytes();
    if (taken > room.nbytes) break;
    memory_.push_back(room.host.allocate(run.nbytes(), MemoryCategory::other));
    memory.emplace_back(memory_.back().data(), run.nbytes());
  }
  RunReader reader(checkpoint_, workers, path);
  const std::vector<bool> is_kept =
      reader.keep(std::span(runs).first(memory.size()), memory, room.patience);
  reader.check(std::span(runs).subspan(memory.size()));
  const std::vector<RecordRun> passing_runs = runs_of(passing);
  for (const RecordRun& run : passing_runs) taken += run.nbytes();
  again_ = taken <= room.nbytes && !passing.empty() ? ReadPath::cached : path;
  caches_ = again_ != path;
  RunReader(checkpoint_, workers, again_).check(passing_runs);
  for (size_t i = 0; i < memory.size(); ++i) {
    if (!is_kept[i]) memory_[i] = {};
    for (const Record* record : is_kept[i] ? runs[i].records : std::span<const Record* const>()) {
      places_.emplace(record, memory[i].data() + (record->offset - runs[i].begin));
    }
  }
}

StagedRecords::Source StagedRecords::source(const Record& record) {
  const auto place = places_.find(&record);
  if (place != places_.end()) {
    return [from = place->second](uint64_t offset, std::span<std::byte> out) {
      std::memcpy(out.data(), from + offset, out.size());
    };
  }
  return [this, &record, &file = file_of(record.shard)](uint64_t offset, std::span<std::byte> out) {
    read_again(file, record, offset, out);
  };
}

const File& StagedRecords::file_of(int shard) {
  const auto found = files_.find(shard);
  if (found != files_.end()) return found->second;
  File file = checkpoint_.open(shard);
  if (again_ == ReadPath::direct) file.go_past_cache();
  return files_.emplace(shard, std::move(file)).first->second;
}

// Whole pages of the file go into place where its memory suits the disk, others through a block.
void StagedRecords::read_again(const File& file, const Record& record, uint64_t offset,
                               std::span<std::byte> out) {
  const auto read = [&](uint64_t at, std::span<std::byte> bytes, size_t needed) {
    if (file.read(at, bytes) >= needed) return;
    fail<CheckpointError>("{}: ends within {}, at offset {}", file.path().string(),
                          checkpoint_.describe(record), record.offset + offset);
  };
  const auto read_block = [&](uint64_t at, std::span<std::byte> to) {
    if (to.empty()) return;
    const uint64_t page = at / kDirectAlignment * kDirectAlignment;
    const ReadBlocks::Block block = blocks_.take();
    const auto bytes = std::span(block.get(), align_direct(at + to.size()) - page);
    ZR_CHECK(bytes.size() <= ReadBlocks::nbytes(), "{} bytes at once", to.size());
    read(page, bytes, at - page + to.size());
    std::memcpy(to.data(), bytes.data() + (at - page), to.size());
  };
  const uint64_t begin = record.offset + offset;
  if (again_ == ReadPath::cached) return read(begin, out, out.size());
  const size_t head = std::min(align_direct(begin) - begin, out.size());
  const size_t whole = (out.size() - head) / kDirectAlignment * kDirectAlignment;
  const auto address = reinterpret_cast<uintptr_t>(out.data() + head);
  if (whole == 0 || address % kMemoryAlignment != 0) return read_block(begin, out);
  read_block(begin, out.first(head));
  read(begin + head, out.subspan(head, whole), whole);
  read_block(begin + head + whole, out.subspan(head + whole));
}

// Pages that were cached for this load alone go.
void StagedRecords::clear() {
  for (const auto& [shard, file] : files_) {
    if (caches_) file.drop_cache();
  }
  files_.clear();
  places_.clear();
  memory_.clear();
}

}  // namespace zerorun
