#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "checkpoint/files/workers.h"
#include "checkpoint/loading/checkpoint_reader.h"

namespace zerorun {

// Consecutive records of one file that one thread reads and verifies.
struct RecordRun {
  std::span<const CheckpointReader::Record* const> records;
  // The range in the file, in multiples of kDirectAlignment; it may end beyond the file.
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t nbytes() const { return end - begin; }
};
// Groups records, given in the order of the files, into runs of 16 to 33 MiB where there are enough
// adjacent records. `records` must outlive the result.
std::vector<RecordRun> runs_of(std::span<const CheckpointReader::Record* const> records);

// Bytes per read, so that they are used while they are in a core's cache.
inline constexpr size_t kReadNbytes = size_t{2} << 20;

// A pool of memory blocks for kReadNbytes anywhere in a file, with the pages around them. Safe to
// use from several threads; each block is used by one thread at a time.
class ReadBlocks {
 public:
  using Block = std::shared_ptr<std::byte>;  // page-aligned; returns to the pool when unused

  Block take();
  static constexpr size_t nbytes() { return kReadNbytes + size_t{8192}; }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<std::byte>> free_;
};

// Whether reads bypass the page cache. `cached` is for data that other ranks read, too.
enum class ReadPath : uint8_t { direct, cached };

// Reads and verifies runs on several threads. Throws CheckpointError for the first record whose
// hash is wrong.
class RunReader {
 public:
  RunReader(const CheckpointReader& checkpoint, Workers& workers, ReadPath path)
      : checkpoint_(checkpoint), workers_(workers), path_(path) {}

  // Verifies runs without keeping them. Calls done(nbytes) from time to time, on one thread at a
  // time.
  using Done = std::function<void(uint64_t nbytes)>;
  void check(
      std::span<const RecordRun> runs, const Done& done = [](uint64_t) {});
  // Verifies runs and keeps each in the page-aligned memory given for it. Returns which runs were
  // kept: none any more after the system has taken `patience` longer to allocate memory than to
  // read.
  std::vector<bool> keep(std::span<const RecordRun> runs,
                         std::span<const std::span<std::byte>> memory,
                         std::chrono::nanoseconds patience);

 private:
  // Returns the memory for the bytes of the run from its byte `done` on.
  using Place = std::function<std::span<std::byte>(uint64_t done, size_t nbytes)>;
  void read_run(const RecordRun& run, const Place& place);
  void populate(std::span<std::byte> memory);

  const CheckpointReader& checkpoint_;
  Workers& workers_;
  const ReadPath path_;
  ReadBlocks blocks_;
  // Totals of all threads.
  std::atomic<int64_t> reading_ns_ = 0;
  std::atomic<int64_t> populating_ns_ = 0;
  std::atomic<bool> keeps_ = true;
};

}  // namespace zerorun
