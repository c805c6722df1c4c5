#pragma once

#include <memory>
#include <vector>

#include "comm/collective_call.h"
#include "comm/shm/blocks.h"
#include "comm/shm/control.h"
#include "comm/shm/segment.h"

namespace zerorun::shm {

// The collectives of ranks that share memory. They run on the caller's thread, one at a time, in
// the same order on every rank, except gather_one_sided().
class Collectives {
 public:
  // If options.store is a MemoryStore, the ranks are threads of this process, else processes of
  // this host.
  explicit Collectives(const GroupOptions& options);

  Control& control() { return control_; }

  void run(const CollectiveCall& call);
  // An all_gather in which the peers need not take part: it may be called at any time and on any
  // thread. The inputs have to be in memory that the ranks allocated together: at the same offset
  // of a per_rank block on every rank, or adjacent in rank order in a per_host block.
  // check_one_sided throws InternalError otherwise.
  void check_one_sided(const CollectiveCall& call) const;
  void gather_one_sided(const CollectiveCall& call);
  Buffer allocate(size_t nbytes, Sharing sharing);
  // The location of a tensor of this rank in memory that the ranks allocated together, and the
  // address of a location in the memory of `rank`.
  Location locate(TensorView view) const { return blocks_->locate(view.data, view.nbytes()); }
  std::shared_ptr<std::byte> address(const Location& location, size_t nbytes, int rank) const {
    return blocks_->address(location, nbytes, rank);
  }

 private:
  void all_reduce(const CollectiveCall& call);
  void reduce_scatter(const CollectiveCall& call);
  void all_gather(const CollectiveCall& call);
  void all_to_all(const CollectiveCall& call);
  void broadcast(const CollectiveCall& call);
  Block share_block(size_t nbytes, Sharing sharing);

  const std::shared_ptr<LocalSegments> local_;  // null unless the ranks are threads
  Control control_;
  const std::shared_ptr<Blocks> blocks_;
  int64_t next_block_ = 0;
};

}  // namespace zerorun::shm
