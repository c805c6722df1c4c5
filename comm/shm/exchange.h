#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "comm/collective_call.h"
#include "comm/shm/control.h"
#include "comm/shm/segment.h"
#include "zerorun/tensor.h"

namespace zerorun::shm {

// Memory that the ranks allocated together: one part of equal size per rank, or one part that all
// ranks share.
struct Block {
  std::shared_ptr<Segment> segment;
  int64_t id = 0;     // the same on all ranks
  size_t nbytes = 0;  // of a part
  size_t stride = 0;  // from one rank's part to the next; 0: one part for all

  std::byte* part(int rank) const { return segment->data() + static_cast<size_t>(rank) * stride; }
};

// The blocks that one rank has allocated and not freed. Safe to use from several threads.
class Blocks : public std::enable_shared_from_this<Blocks> {
 public:
  explicit Blocks(int rank) : rank_(rank) {}

  // Adds a block and returns the Buffer that owns this rank's part. It may outlive the
  // communicator.
  Buffer add(Block block);
  // The location of [data, data + nbytes) in this rank's part of a block; Location::kPrivate if it
  // is in none.
  Location locate(const std::byte* data, size_t nbytes) const;
  // The address of the same location in another rank's part. The result keeps the block mapped.
  // Throws CommError if this rank has freed the block or the range exceeds it.
  std::shared_ptr<std::byte> address(const Location& location, size_t nbytes, int rank) const;
  // True if the location is in a part that all ranks share.
  bool per_host(const Location& location) const;

 private:
  void remove(const std::byte* data);
  const Block* find(int64_t id) const;

  const int rank_;
  mutable std::mutex mutex_;
  std::map<const std::byte*, Block> by_address_;  // of this rank's part
};

// The data exchange of one collective. It announces the call and then gives each rank the inputs of
// the others. Inputs in shared memory are read in place; others are copied chunk by chunk through
// the staging memory of their ranks.
//
// An input has one row per rank in a reduce_scatter or all_to_all, and one row in all other
// collectives. A rank reads the same row of all inputs. Of an all_to_all with cuts, inputs have one
// row of any length, of which a chunk may have fewer elements than it says, or none.
class Exchange {
 public:
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t numel() const { return end - begin; }
  };
  // Consecutive elements of the row that this rank reads.
  struct Chunk {
    int64_t begin = 0;
    int64_t numel = 0;
    std::span<const std::byte* const> sources;  // one per rank with input, in rank order
  };

  // Returns when all ranks have arrived and their announcements agree.
  Exchange(Control& control, const Blocks& blocks, const CollectiveCall& call);

  // The announcement of `rank`.
  const Announcement& peer(int rank) const { return peers_[static_cast<size_t>(rank)]; }
  bool all(const std::function<bool(const Announcement&)>& condition) const;
  // True if all outputs are the same memory, in a block that all ranks share.
  bool one_output() const;
  // True if an input is read in place. A final step must then tell its owner that reading is over.
  bool reads_inputs() const;

  // Stages all inputs, whatever was announced, because outputs will overwrite inputs that peers
  // still need.
  void stage_all();
  // This rank needs a part of the row only.
  void read_only(Range part) { part_ = part; }
  // Gets the next chunk of the row, which chunk() then returns. False if there is none.
  bool next();
  const Chunk& chunk() const { return chunk_; }

 private:
  bool gives(int rank) const;
  int64_t numel_of(int rank) const;  // of its input
  bool staged(int rank) const;
  void stage(int64_t begin, int64_t numel);
  void find_inputs();

  Control& control_;
  const Blocks& blocks_;
  const CollectiveCall& call_;
  const int64_t rows_;
  const int64_t row_numel_;    // the largest of all ranks
  const int64_t stage_numel_;  // elements of a row that fit into a stage
  std::vector<Announcement> peers_;
  bool stage_all_ = false;
  // Inputs that are read in place, by rank; null: staged. They stay mapped until this is destroyed.
  std::vector<std::shared_ptr<std::byte>> direct_;
  int64_t step_ = 0;  // elements that ranks stage at once
  int64_t next_ = 0;  // the first that they have not staged
  Range part_;
  std::vector<const std::byte*> sources_;
  Chunk chunk_;
};

}  // namespace zerorun::shm
