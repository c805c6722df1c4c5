#include "checkpoint/loading/record_runs.h"

#include <algorithm>
#include <utility>

#include "checkpoint/files/file.h"
#include "checkpoint/files/hash.h"
#include "checkpoint/format/hashed_header.h"
#include "core/check.h"
#include "device/staging.h"
#include "offload/block_io.h"

namespace zerorun {

namespace {

using Record = CheckpointReader::Record;

constexpr uint64_t kMaxGap = uint64_t{1} << 20;  // that costs less to read than to leave out

uint64_t end_of(const Record& record) { return record.offset + record.nbytes(); }

// Hands on and hashes the records of a run, whose bytes come in order.
class RunHashes {
 public:
  RunHashes(const CheckpointReader& checkpoint, const RecordRun& run,
            const RunReader::Visitor& visitor)
      : checkpoint_(checkpoint), visitor_(visitor), left_(run.records) {}

  // The bytes of the file from `offset` on.
  void update(uint64_t offset, std::span<const std::byte> bytes) {
    const uint64_t end = offset + bytes.size();
    while (!left_.empty() && left_.front()->offset < end) {
      const Record& record = *left_.front();
      const uint64_t from = std::max(offset, record.offset);
      const uint64_t to = std::min(end, end_of(record));
      const auto part = bytes.subspan(from - offset, to - from);
      hash_.update(part);  // first: it brings them into the cache
      if (visitor_.use) visitor_.use(record, from - record.offset, part);
      if (to < end_of(record)) return;
      checkpoint_.check_hash(record, hash_.value());
      hash_.reset();
      left_ = left_.subspan(1);
    }
  }

 private:
  const CheckpointReader& checkpoint_;
  const RunReader::Visitor& visitor_;
  std::span<const Record* const> left_;
  Hash hash_;  // of the first of them, as far as it came
};

}  // namespace

std::vector<RecordRun> runs_of(std::span<const Record* const> records) {
  std::vector<RecordRun> runs;
  for (size_t first = 0; first < records.size();) {
    const uint64_t begin = records[first]->offset / kDirectAlignment * kDirectAlignment;
    uint64_t end = end_of(*records[first]);
    size_t last = first + 1;
    while (last < records.size() && records[last]->shard == records[first]->shard &&
           end - begin < kChunkNbytes && records[last]->offset <= end + kMaxGap) {
      end = end_of(*records[last++]);
    }
    runs.push_back({records.subspan(first, last - first), begin, align_direct(end)});
    first = last;
  }
  return runs;
}

ReadBlocks::Block ReadBlocks::take() {
  const std::scoped_lock lock(mutex_);
  if (free_.empty()) {
    free_.push_back(std::make_unique<Buffer>(allocate_staging(device_, nbytes())));
  }
  Buffer* const block = free_.back().release();
  free_.pop_back();
  return {block, [this](Buffer* unused) {
            const std::scoped_lock back(mutex_);
            free_.emplace_back(unused);
          }};
}

void RunReader::read(std::span<const RecordRun> runs, const Visitor& visitor) {
  std::mutex mutex;
  workers_.each(runs.size(), [&](size_t i) {
    read_run(runs[i], visitor);
    if (!visitor.done) return;
    const std::scoped_lock lock(mutex);
    visitor.done(runs[i].nbytes());
  });
}

void RunReader::read_run(const RecordRun& run, const Visitor& visitor) {
  File file = checkpoint_.open(run.records.front()->shard);
  if (path_ == ReadPath::direct) file.go_past_cache();
  if (path_ == ReadPath::cached) file.start_read(run.begin, run.nbytes());
  const ReadBlocks::Block memory = blocks_.take();
  RunHashes hashes(checkpoint_, run, visitor);
  const uint64_t needed = end_of(*run.records.back());
  for (uint64_t at = run.begin; at < run.end; at += kReadNbytes) {
    const std::span block(memory->data(), std::min<uint64_t>(kReadNbytes, run.end - at));
    const size_t got = file.read(at, block);
    if (got < std::min<uint64_t>(block.size(), needed - at)) {
      fail<CheckpointError>("{}: ends at byte {}, within {}", file.path().string(), at + got,
                            checkpoint_.describe(*run.records.back()));
    }
    hashes.update(at, block.first(got));
  }
}

}  // namespace zerorun
