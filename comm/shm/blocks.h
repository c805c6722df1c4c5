#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "comm/shm/announcement.h"
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

}  // namespace zerorun::shm
