#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "comm/collective_call.h"
#include "comm/shm/blocks.h"
#include "comm/shm/control.h"

namespace zerorun::shm {

// One collective in progress: it announces the call, and then brings the ranks' inputs to whoever
// reads them. Inputs in shared memory are read where they lie; others pass through the stages of
// their ranks, chunk by chunk.
//
// An input is a number of rows, one for each rank in a reduce_scatter or all_to_all and else
// one; a rank reads the same row of all inputs.
class Exchange {
 public:
  // Consecutive elements of the row that this rank reads.
  struct Chunk {
    int64_t begin = 0;
    int64_t numel = 0;
    std::span<const std::byte* const> sources;  // of each giver, in rank order
  };

  // Returns when all ranks have arrived and agree.
  Exchange(Control& control, const Blocks& blocks, const CollectiveCall& call);

  // The announcement of `rank`.
  const Announcement& peer(int rank) const { return peers_[static_cast<size_t>(rank)]; }
  bool all(const std::function<bool(const Announcement&)>& condition) const;
  // True when all outputs are the same bytes: one block for all ranks.
  bool one_output() const;
  // Some input is read where it lies: a final step must tell its owner that this is over.
  bool reads_inputs() const;

  // All inputs pass through the stages, whatever was announced: outputs will overwrite inputs that
  // peers still need.
  void stage_all();
  // Calls `body` on each chunk of the row.
  void for_each_chunk(const std::function<void(const Chunk&)>& body);

 private:
  bool gives(int rank) const;
  bool staged(int rank) const;
  void stage(int64_t begin, int64_t numel);

  Control& control_;
  const Blocks& blocks_;
  const CollectiveCall& call_;
  const int64_t rows_;
  const int64_t row_numel_;
  const int64_t stage_numel_;  // elements of a row that fit into a stage
  std::vector<Announcement> peers_;
  bool stage_all_ = false;
};

}  // namespace zerorun::shm
