#include "checkpoint/loading/record_runs.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

#include "checkpoint/files/file.h"
#include "checkpoint/files/hash.h"
#include "checkpoint/format/hashed_header.h"
#include "core/check.h"
#include "device/cpu/host_memory.h"
#include "offload/block_io.h"

namespace zerorun {

namespace {

using Record = CheckpointReader::Record;

constexpr uint64_t kMaxGap = uint64_t{1} << 20;  // that costs less to read than to leave out

int64_t nanoseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
}

uint64_t end_of(const Record& record) { return record.offset + record.nbytes(); }

// Hashes the records of a run, whose bytes come in order.
class RunHashes {
 public:
  RunHashes(const CheckpointReader& checkpoint, const RecordRun& run)
      : checkpoint_(checkpoint), left_(run.records) {}

  // The bytes of the file from `offset` on.
  void update(uint64_t offset, std::span<const std::byte> bytes) {
    const uint64_t end = offset + bytes.size();
    while (!left_.empty() && left_.front()->offset < end) {
      const Record& record = *left_.front();
      const uint64_t from = std::max(offset, record.offset);
      const uint64_t to = std::min(end, end_of(record));
      hash_.update(bytes.subspan(from - offset, to - from));
      if (to < end_of(record)) return;
      checkpoint_.check_hash(record, hash_.value());
      hash_.reset();
      left_ = left_.subspan(1);
    }
  }

 private:
  const CheckpointReader& checkpoint_;
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
    const HostBlock block = allocate_host(nbytes());
    if (block.data == nullptr) throw std::bad_alloc();
    free_.emplace_back(static_cast<std::byte*>(block.data),
                       [free = block.free](std::byte*) { free(); });
  }
  const std::shared_ptr<std::byte> memory = std::move(free_.back());
  free_.pop_back();
  return {memory.get(), [this, memory](std::byte*) {
            const std::scoped_lock back(mutex_);
            free_.push_back(memory);
          }};
}

void RunReader::check(std::span<const RecordRun> runs, const Done& done) {
  std::mutex mutex;
  workers_.each(runs.size(), [&](size_t i) {
    const ReadBlocks::Block block = blocks_.take();
    read_run(runs[i], [&](uint64_t, size_t nbytes) { return std::span(block.get(), nbytes); });
    const std::scoped_lock lock(mutex);
    done(runs[i].nbytes());
  });
}

std::vector<bool> RunReader::keep(std::span<const RecordRun> runs,
                                  std::span<const std::span<std::byte>> memory,
                                  std::chrono::nanoseconds patience) {
  std::vector<std::atomic<bool>> kept(runs.size());
  workers_.each(runs.size(), [&](size_t i) {
    ZR_CHECK(memory[i].size() == runs[i].nbytes(), "{} bytes for {}", memory[i].size(),
             runs[i].nbytes());
    ReadBlocks::Block block;
    read_run(runs[i], [&](uint64_t done, size_t nbytes) {
      if (populating_ns_ > reading_ns_ + patience.count()) keeps_ = false;
      if (!block && !keeps_) block = blocks_.take();
      if (block) return std::span(block.get(), nbytes);
      populate(memory[i].subspan(done, nbytes));
      return memory[i].subspan(done, nbytes);
    });
    kept[i] = block == nullptr;
  });
  return {kept.begin(), kept.end()};
}

// Fresh memory costs little where the system has it, and several times a read where a hypervisor
// has taken it back.
void RunReader::populate(std::span<std::byte> memory) {
  const auto start = std::chrono::steady_clock::now();
  ::madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE);  // else the read does it
  populating_ns_ += nanoseconds_since(start);
}

void RunReader::read_run(const RecordRun& run, const Place& place) {
  File file = checkpoint_.open(run.records.front()->shard);
  if (path_ == ReadPath::direct) file.go_past_cache();
  if (path_ == ReadPath::cached) file.start_read(run.begin, run.nbytes());
  RunHashes hashes(checkpoint_, run);
  const uint64_t needed = end_of(*run.records.back());
  for (uint64_t at = run.begin; at < run.end; at += kReadNbytes) {
    const auto block = place(at - run.begin, std::min<uint64_t>(kReadNbytes, run.end - at));
    const auto start = std::chrono::steady_clock::now();
    const size_t got = file.read(at, block);
    reading_ns_ += nanoseconds_since(start);
    if (got < std::min<uint64_t>(block.size(), needed - at)) {
      fail<CheckpointError>("{}: ends at byte {}, within {}", file.path().string(), at + got,
                            checkpoint_.describe(*run.records.back()));
    }
    hashes.update(at, block.first(got));
  }
}

}  // namespace zerorun
