#include "checkpoint/loading/staged_records.h"

#include <cstring>
#include <utility>

#include "core/check.h"
#include "offload/block_io.h"

namespace zerorun {

void StagedRecords::read(std::span<const Record* const> kept,
                         std::span<const Record* const> passing, const Room& room, ReadPath path,
                         Workers& workers) {
  path_ = path;
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
  reader.check(runs_of(passing));
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
  if (record.shard != std::exchange(shard_, record.shard)) {
    File file = checkpoint_.open(record.shard);
    if (path_ == ReadPath::direct) file.go_past_cache();
    file_ = std::make_shared<const File>(std::move(file));
  }
  return [this, &record, file = file_](uint64_t offset, std::span<std::byte> out) {
    read_again(*file, record, offset, out);
  };
}

// The whole pages around the bytes, as direct reads need.
void StagedRecords::read_again(const File& file, const Record& record, uint64_t offset,
                               std::span<std::byte> out) {
  const uint64_t begin = record.offset + offset;
  const uint64_t page = begin / kDirectAlignment * kDirectAlignment;
  const ReadBlocks::Block block = blocks_.take();
  const auto bytes = std::span(block.get(), align_direct(begin + out.size()) - page);
  ZR_CHECK(bytes.size() <= ReadBlocks::nbytes(), "{} bytes at once", out.size());
  if (file.read(page, bytes) < begin - page + out.size()) {
    fail<CheckpointError>("{}: ends within {}, at offset {}", file.path().string(),
                          checkpoint_.describe(record), begin);
  }
  std::memcpy(out.data(), bytes.data() + (begin - page), out.size());
}

void StagedRecords::clear() {
  places_.clear();
  memory_.clear();
}

}  // namespace zerorun
