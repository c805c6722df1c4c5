#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/checkpoint_reader.h"

namespace zerorun {

// Records that lie one after the other in a file, to be read at once.
struct RecordRun {
  std::span<const CheckpointReader::Record* const> records;  // not empty

  int shard() const { return records.front()->shard; }
  uint64_t begin() const { return records.front()->offset; }
  uint64_t end() const { return records.back()->offset + records.back()->nbytes(); }
  uint64_t nbytes() const { return end() - begin(); }
};

// `records`: in the order of the files, each once, and alive as long as the result. A run is of one
// kind: `kind_of(record)` gives a number.
template <typename KindOf>
std::vector<RecordRun> runs_of(std::span<const CheckpointReader::Record* const> records,
                               const KindOf& kind_of) {
  constexpr uint64_t kGapNbytes = uint64_t{64} << 10;  // read along rather than skipped
  std::vector<RecordRun> runs;
  for (size_t i = 0; i < records.size(); ++i) {
    const CheckpointReader::Record& next = *records[i];
    const auto belongs_to = [&](const RecordRun& run) {
      return run.shard() == next.shard && next.offset <= run.end() + kGapNbytes &&
             run.nbytes() < kChunkNbytes && kind_of(*run.records.front()) == kind_of(next);
    };
    if (!runs.empty() && belongs_to(runs.back())) {
      runs.back().records = {runs.back().records.data(), runs.back().records.size() + 1};
    } else {
      runs.push_back({records.subspan(i, 1)});
    }
  }
  return runs;
}

// The bytes of a run in memory, read past the system's cache where the file system lets that be.
class RunInMemory {
 public:
  // What it will take.
  static uint64_t memory_for(const RecordRun& run);
  // Reads and checks the hashes. Throws CheckpointError, IoError, std::bad_alloc.
  RunInMemory(const CheckpointReader& checkpoint, const RecordRun& run);

  std::span<const std::byte> bytes_of(const CheckpointReader::Record& record) const {
    return {memory_.get() + (record.offset - begin_), record.nbytes()};
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  uint64_t begin_ = 0;  // of the memory, in the file
  std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace zerorun
