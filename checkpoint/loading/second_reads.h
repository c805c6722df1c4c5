#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>

#include "checkpoint/loading/checkpoint_reader.h"
#include "checkpoint/loading/record_runs.h"
#include "zerorun/device.h"

namespace zerorun {

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
