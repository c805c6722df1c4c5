#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "checkpoint/files/workers.h"
#include "checkpoint/loading/checkpoint_reader.h"
#include "checkpoint/loading/record_runs.h"
#include "zerorun/device.h"

namespace zerorun {

// The records that a rank loads, between disk and engine: all are verified before any is used.
// Records are kept in host memory as long as there is space and memory is allocated faster than the
// disk reads. The rest are only verified and read again later; records of offloaded states are read
// again from the page cache, if it has space for all of them.
class StagedRecords {
 public:
  using Record = CheckpointReader::Record;

  explicit StagedRecords(const CheckpointReader& checkpoint) : checkpoint_(checkpoint) {}

  struct Room {
    Device& host;
    uint64_t nbytes = 0;
    // How much longer than the disk memory may take, summed over the threads that read, until no
    // more is allocated.
    std::chrono::nanoseconds patience = std::chrono::milliseconds(100);
  };
  // Reads and verifies both lists, which are in the order of the files. Only `kept` may use `room`.
  // Throws CheckpointError.
  void read(std::span<const Record* const> kept, std::span<const Record* const> passing,
            const Room& room, ReadPath path, Workers& workers);
  // Copies out.size() <= kReadNbytes bytes of a record, from its byte `offset` on. Safe to use from
  // several threads.
  using Source = std::function<void(uint64_t offset, std::span<std::byte> out)>;
  // The source of a record that was passed to read().
  Source source(const Record& record);
  // Frees the memory.
  void clear();

 private:
  const File& file_of(int shard);
  void read_again(const File& file, const Record& record, uint64_t offset,
                  std::span<std::byte> out);

  const CheckpointReader& checkpoint_;
  ReadPath again_ = ReadPath::cached;  // how records are read again
  bool caches_ = false;                // they are in the page cache only for that
  std::vector<Buffer> memory_;
  std::unordered_map<const Record*, const std::byte*> places_;  // first byte of each record
  std::unordered_map<int, const File> files_;                   // by shard: files read again
  ReadBlocks blocks_;
};

}  // namespace zerorun
