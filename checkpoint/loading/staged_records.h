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

// What a rank loads, between the disk and its place: all of it is checked before any of it is used.
// As far as there is room, and memory comes faster than the disk, it waits in memory of the host;
// the rest is only checked, and read again: what is not to be kept from the system's cache, where
// there is room for all of it.
class StagedRecords {
 public:
  using Record = CheckpointReader::Record;

  explicit StagedRecords(const CheckpointReader& checkpoint) : checkpoint_(checkpoint) {}

  struct Room {
    Device& host;
    uint64_t nbytes = 0;
    // That memory may take longer than the disk before no more of it is asked for.
    std::chrono::nanoseconds patience = std::chrono::milliseconds(5);
  };
  // Reads and checks `kept`, for which the room is, and `passing`; both in the order of the files.
  // Throws CheckpointError.
  void read(std::span<const Record* const> kept, std::span<const Record* const> passing,
            const Room& room, ReadPath path, Workers& workers);
  // Copies out.size() <= kReadNbytes of a record's bytes, from its byte `offset` on. For several
  // threads.
  using Source = std::function<void(uint64_t offset, std::span<std::byte> out)>;
  // Of one that was read.
  Source source(const Record& record);
  // Gives the memory back.
  void clear();

 private:
  const File& file_of(int shard);
  void read_again(const File& file, const Record& record, uint64_t offset,
                  std::span<std::byte> out);

  const CheckpointReader& checkpoint_;
  ReadPath again_ = ReadPath::cached;  // the way in which records are read again
  bool caches_ = false;                // and are in the cache for that alone
  std::vector<Buffer> memory_;
  std::unordered_map<const Record*, const std::byte*> places_;  // of the first byte of each
  std::unordered_map<int, const File> files_;                   // by shard: those read again
  ReadBlocks blocks_;
};

}  // namespace zerorun
