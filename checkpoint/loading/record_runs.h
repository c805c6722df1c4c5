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

// Neighbours in one file that one thread reads and checks.
struct RecordRun {
  std::span<const CheckpointReader::Record* const> records;
  // In the file, multiples of kDirectAlignment; the end may be beyond the file's.
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t nbytes() const { return end - begin; }
};
// Cuts records, which come in the order of the files, into runs of 16 to 33 MiB where they are so
// many. `records` must outlive the result.
std::vector<RecordRun> runs_of(std::span<const CheckpointReader::Record* const> records);

// Bytes that are read at once: they are used while a core's cache has them.
inline constexpr size_t kReadNbytes = size_t{2} << 20;

// Blocks of memory for kReadNbytes anywhere in a file, with the pages around them. For several
// threads; each block is one thread's at a time.
class ReadBlocks {
 public:
  using Block = std::shared_ptr<std::byte>;  // from a page on; back among these with its last copy

  Block take();
  static constexpr size_t nbytes() { return kReadNbytes + size_t{8192}; }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<std::byte>> free_;
};

// Past the system's cache, or through it where other ranks read the same.
enum class ReadPath : uint8_t { direct, cached };

// Reads runs on several threads, and checks them. Throws CheckpointError unless every hash is
// right: of several that are not, the first.
class RunReader {
 public:
  RunReader(const CheckpointReader& checkpoint, Workers& workers, ReadPath path)
      : checkpoint_(checkpoint), workers_(workers), path_(path) {}

  // Calls done(nbytes) now and then, on one thread at a time.
  using Done = std::function<void(uint64_t nbytes)>;
  void check(
      std::span<const RecordRun> runs, const Done& done = [](uint64_t) {});
  // Keeps what is read, of each run in memory of as many bytes, from a page on; returns of which.
  // Of none any more once the system has taken so much longer to give memory than to read.
  std::vector<bool> keep(std::span<const RecordRun> runs,
                         std::span<const std::span<std::byte>> memory,
                         std::chrono::nanoseconds patience);

 private:
  // Where a block goes: the bytes of the run from its byte `done` on.
  using Place = std::function<std::span<std::byte>(uint64_t done, size_t nbytes)>;
  void read_run(const RecordRun& run, const Place& place);
  void populate(std::span<std::byte> memory);

  const CheckpointReader& checkpoint_;
  Workers& workers_;
  const ReadPath path_;
  ReadBlocks blocks_;
  // Of all threads.
  std::atomic<int64_t> reading_ns_ = 0;
  std::atomic<int64_t> populating_ns_ = 0;
  std::atomic<bool> keeps_ = true;
};

}  // namespace zerorun
