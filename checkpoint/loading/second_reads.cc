#include "checkpoint/loading/second_reads.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "offload/block_io.h"

namespace zerorun {

SecondReads::Source SecondReads::source(const CheckpointReader::Record& record) {
  return [this, &record, &file = file_of(record.shard)](uint64_t offset, std::span<std::byte> out) {
    read(file, record, offset, out);
  };
}

const File& SecondReads::file_of(int shard) {
  const auto found = files_.find(shard);
  if (found != files_.end()) return found->second;
  File file = checkpoint_.open(shard);
  if (path_ == ReadPath::direct) file.go_past_cache();
  return files_.emplace(shard, std::move(file)).first->second;
}

// Whole pages of the file go into place where its memory suits the disk, others through a block.
void SecondReads::read(const File& file, const CheckpointReader::Record& record, uint64_t offset,
                       std::span<std::byte> out) {
  const auto read_exactly = [&](uint64_t at, std::span<std::byte> bytes, size_t needed) {
    if (file.read(at, bytes) >= needed) return;
    fail<CheckpointError>("{}: ends within {}, at offset {}", file.path().string(),
                          checkpoint_.describe(record), record.offset + offset);
  };
  const auto read_block = [&](uint64_t at, std::span<std::byte> to) {
    if (to.empty()) return;
    const uint64_t page = at / kDirectAlignment * kDirectAlignment;
    const ReadBlocks::Block block = blocks_.take();
    const auto bytes = std::span(block->data(), align_direct(at + to.size()) - page);
    ZR_CHECK(bytes.size() <= ReadBlocks::nbytes(), "{} bytes at once", to.size());
    read_exactly(page, bytes, at - page + to.size());
    std::memcpy(to.data(), bytes.data() + (at - page), to.size());
  };
  const uint64_t begin = record.offset + offset;
  if (path_ == ReadPath::cached) return read_exactly(begin, out, out.size());
  const size_t head = std::min(align_direct(begin) - begin, out.size());
  const size_t whole = (out.size() - head) / kDirectAlignment * kDirectAlignment;
  const auto address = reinterpret_cast<uintptr_t>(out.data() + head);
  if (whole == 0 || address % kMemoryAlignment != 0) return read_block(begin, out);
  read_block(begin, out.first(head));
  read_exactly(begin + head, out.subspan(head, whole), whole);
  read_block(begin + head + whole, out.subspan(head + whole));
}

void SecondReads::clear() {
  for (const auto& [shard, file] : files_) {
    if (drops_cache_) file.drop_cache();
  }
  files_.clear();
}

}  // namespace zerorun
