#include "checkpoint/loading/record_runs.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <utility>

#include "checkpoint/files/file.h"
#include "checkpoint/format/shard_file.h"
#include "core/check.h"
#include "device/staging.h"
#include "os/open_file.h"

namespace zerorun {

void Workers::each(size_t count, const std::function<void(size_t)>& body) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  size_t failed = count;  // the lowest item that has
  std::exception_ptr error;
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        body(i);
      } catch (...) {
        next = count;  // those before this one have begun
        const std::scoped_lock lock(mutex);
        if (i >= failed) continue;
        failed = i;
        error = std::current_exception();
      }
    }
  };
  const size_t helping = std::min(threads_, count) - (count > 0 ? 1 : 0);
  while (helpers_.size() < helping) helpers_.push_back(make_worker_stream("zerorun-load"));
  for (size_t i = 0; i < helping; ++i) helpers_[i]->submit(work);
  work();
  for (size_t i = 0; i < helping; ++i) helpers_[i]->synchronize();
  if (error) std::rethrow_exception(error);
}

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

void sort_by_place(std::vector<const Record*>& records) {
  std::ranges::sort(records, {},
                    [](const Record* record) { return std::pair(record->shard, record->offset); });
}

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
