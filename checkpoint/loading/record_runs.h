#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "checkpoint/loading/checkpoint_reader.h"
#include "device/cpu/cpu_stream.h"
#include "zerorun/device.h"

namespace zerorun {

inline constexpr size_t kReadingThreads = 4;  // of a rank

// A few threads that process items which mostly wait for a disk or for memory. The calling thread
// is one of them; the others start when there is work for them.
class Workers {
 public:
  explicit Workers(size_t threads) : threads_(threads) {}

  // Calls body(i) for each i below `count`, in ascending order, several at a time. Rethrows the
  // error of the lowest item that failed; later items may be skipped.
  void each(size_t count, const std::function<void(size_t)>& body);

 private:
  const size_t threads_;
  std::vector<std::unique_ptr<CpuStream>> helpers_;
};

// Consecutive records of one file that one thread reads and verifies.
struct RecordRun {
  std::span<const CheckpointReader::Record* const> records;
  // The range in the file, in multiples of kDirectAlignment; it may end beyond the file.
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t nbytes() const { return end - begin; }
};
// Sorts records in the order of the files.
void sort_by_place(std::vector<const CheckpointReader::Record*>& records);
// Groups records, given in the order of the files, into runs of 16 to 33 MiB where there are enough
// adjacent records. `records` must outlive the result.
std::vector<RecordRun> runs_of(std::span<const CheckpointReader::Record* const> records);

// Bytes per read, so that they are used while they are in a core's cache.
inline constexpr size_t kReadNbytes = size_t{2} << 20;

// A pool of memory blocks for kReadNbytes anywhere in a file, with the pages around them. Safe to
// use from several threads; each block is used by one thread at a time.
class ReadBlocks {
 public:
  explicit ReadBlocks(Device& device) : device_(device) {}

  // Page-aligned and fast to copy to the device; returns to the pool when unused.
  using Block = std::unique_ptr<Buffer, std::function<void(Buffer*)>>;
  Block take();
  static constexpr size_t nbytes() { return kReadNbytes + size_t{8192}; }

 private:
  Device& device_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Buffer>> free_;
};

// Whether reads bypass the page cache. `cached` is for data that other ranks read, too.
enum class ReadPath : uint8_t { direct, cached };

// Reads and verifies runs on several threads.
class RunReader {
 public:
  RunReader(const CheckpointReader& checkpoint, Device& device, Workers& workers, ReadPath path)
      : checkpoint_(checkpoint), workers_(workers), path_(path), blocks_(device) {}

  struct Visitor {
    // Returns where these whole pages of the file, of one record, are to be read, before the record
    // is verified. Null: into a block, and use() is called with them.
    std::function<std::byte*(const CheckpointReader::Record& record, uint64_t offset,
                             size_t nbytes)>
        place{};
    // Called with all other bytes of each record, in order, before the record is verified.
    std::function<void(const CheckpointReader::Record& record, uint64_t offset,
                       std::span<const std::byte> bytes)>
        use{};
    // Called from time to time with the number of bytes read since, on one thread at a time.
    std::function<void(uint64_t nbytes)> done{};
  };
  // Throws CheckpointError for the first record whose hash is wrong.
  void read(std::span<const RecordRun> runs, const Visitor& visitor);

 private:
  void read_run(const RecordRun& run, const Visitor& visitor);

  const CheckpointReader& checkpoint_;
  Workers& workers_;
  const ReadPath path_;
  ReadBlocks blocks_;
};

// Reads parts of records that have been verified before.
class SecondReads {
 public:
  SecondReads(const CheckpointReader& checkpoint, Device& device)
      : checkpoint_(checkpoint), blocks_(device) {}

  // How to read from now on. `drops_cache`: clear() drops the files from the page cache.
  void use(ReadPath path, bool drops_cache) {
    path_ = path;
    drops_cache_ = drops_cache;
  }
  // Copies out.size() <= kReadNbytes bytes of a record, from its byte `offset` on. Safe to use from
  // several threads.
  using Source = std::function<void(uint64_t offset, std::span<std::byte> out)>;
  Source source(const CheckpointReader::Record& record);
  // Closes the files.
  void clear();

 private:
  const File& file_of(int shard);
  void read(const File& file, const CheckpointReader::Record& record, uint64_t offset,
            std::span<std::byte> out);

  const CheckpointReader& checkpoint_;
  ReadPath path_ = ReadPath::cached;
  bool drops_cache_ = false;
  std::unordered_map<int, const File> files_;  // by shard
  ReadBlocks blocks_;
};

}  // namespace zerorun
