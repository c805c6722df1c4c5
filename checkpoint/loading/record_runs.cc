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

constexpr size_t kMinInPlace = size_t{256} << 10;  // less is not worth a read of its own
constexpr uint64_t kMaxGap = uint64_t{1} << 20;    // that costs less to read than to leave out

uint64_t end_of(const Record& record) { return record.offset + record.nbytes(); }

// What is read at once, and where to.
struct Step {
  size_t nbytes = 0;
  std::byte* place = nullptr;  // null: a block
};

// Hands on and hashes the records of a run, whose bytes come in order.
class RunHashes {
 public:
  RunHashes(const CheckpointReader& checkpoint, const RecordRun& run,
            const RunReader::Visitor& visitor)
      : checkpoint_(checkpoint), visitor_(visitor), left_(run.records) {}

  // The next step from here on, in whole pages of at most `most` bytes.
  Step next(uint64_t at, size_t most) const {
    if (!visitor_.place || left_.empty()) return {most};
    const Record& record = *left_.front();
    if (record.offset <= at) {
      const uint64_t whole = (end_of(record) - at) / kDirectAlignment * kDirectAlignment;
      const size_t nbytes = std::min<uint64_t>(whole, most);
      std::byte* const place =
          nbytes < kMinInPlace ? nullptr : visitor_.place(record, at - record.offset, nbytes);
      if (place != nullptr) return {nbytes, place};
    }
    for (const Record* later : left_) {  // up to the first whole page of a long one
      if (later->offset <= at || later->nbytes() < 2 * kMinInPlace) continue;
      return {std::min<size_t>(most, align_direct(later->offset) - at)};
    }
    return {most};
  }

  // The bytes of the file from `offset` on.
  void update(uint64_t offset, std::span<const std::byte> bytes, bool is_in_place) {
    const uint64_t end = offset + bytes.size();
    while (!left_.empty() && left_.front()->offset < end) {
      const Record& record = *left_.front();
      const uint64_t from = std::max(offset, record.offset);
      const uint64_t to = std::min(end, end_of(record));
      const auto part = bytes.subspan(from - offset, to - from);
      hash_.update(part);  // first: it brings them into the cache
      if (visitor_.use && !is_in_place) visitor_.use(record, from - record.offset, part);
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
  for (uint64_t at = run.begin; at < run.end;) {
    const Step step = hashes.next(at, std::min<uint64_t>(kReadNbytes, run.end - at));
    const bool is_in_place = step.place != nullptr;
    const std::span bytes(is_in_place ? step.place : memory->data(), step.nbytes);
    const size_t got = file.read(at, bytes);
    if (got < std::min<uint64_t>(bytes.size(), needed - at)) {
      fail<CheckpointError>("{}: ends at byte {}, within {}", file.path().string(), at + got,
                            checkpoint_.describe(*run.records.back()));
    }
    hashes.update(at, bytes.first(got), is_in_place);
    at += step.nbytes;
  }
}

}  // namespace zerorun
