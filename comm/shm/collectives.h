#pragma once

#include <memory>

#include "comm/host_transport.h"
#include "comm/shm/control.h"
#include "comm/shm/exchange.h"
#include "comm/shm/segment.h"

namespace zerorun::shm {

// The transport of ranks of one host, which share memory. run() performs collectives on the
// caller's thread, one at a time, in the same order on every rank, except one-sided gathers.
class Collectives final : public HostTransport {
 public:
  // If options.store is a MemoryStore, the ranks are threads of this process, else processes of
  // this host.
  explicit Collectives(const GroupOptions& options);

  Control& control() { return control_; }

  TransportTraits traits() const override {
    return {.name = "shm", .local_world_size = control_.world_size(), .reads_peers = true};
  }
  void run(const CollectiveCall& call) override;
  std::optional<Buffer> make_buffer(size_t nbytes, Sharing sharing) override;
  void check_peers(std::string_view what) override { control_.check_peers(what); }
  void abort(std::string_view reason) noexcept override { control_.abort(reason); }
  void set_error(std::string_view error) noexcept override { control_.set_error(error); }
  std::string error() override { return control_.error(); }
  void leave() noexcept override { control_.leave(); }

  // The location of a tensor of this rank in memory that the ranks allocated together, and the
  // address of a location in the memory of `rank`.
  Location locate(TensorView view) const { return blocks_->locate(view.data, view.nbytes()); }
  std::shared_ptr<std::byte> address(const Location& location, size_t nbytes, int rank) const {
    return blocks_->address(location, nbytes, rank);
  }

 private:
  // A one-sided gather runs at any time and on any thread. Its inputs have to be in memory that the
  // ranks allocated together: at the same offset of a per_rank block on every rank, or adjacent in
  // rank order in a per_host block.
  bool takes_turn(const CollectiveCall& call) const override;
  void gather_one_sided(const CollectiveCall& call);
  void all_reduce(const CollectiveCall& call, Exchange& exchange);
  void gather_into_one(const CollectiveCall& call, const Exchange& exchange);
  void copy_gathered(const CollectiveCall& call, const Exchange::Chunk& chunk) const;
  void copy_rows(const CollectiveCall& call, const Exchange::Chunk& chunk) const;
  void copy_slices(const CollectiveCall& call, const Exchange::Chunk& chunk) const;
  Block share_block(size_t nbytes, Sharing sharing);

  const std::shared_ptr<LocalSegments> local_;  // null unless the ranks are threads
  Control control_;
  const std::shared_ptr<Blocks> blocks_;
  int64_t next_block_ = 0;
};

}  // namespace zerorun::shm
