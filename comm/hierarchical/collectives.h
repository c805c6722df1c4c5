#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/hierarchical/topology.h"
#include "comm/hierarchical/watch.h"
#include "comm/host_transport.h"
#include "comm/links.h"
#include "comm/shm/collectives.h"

namespace zerorun::hierarchical {

// The transport of ranks on several hosts: shared memory within a host, point-to-point links
// between hosts. run() performs collectives on the caller's thread, one at a time, in the same
// order on every rank.
//
// Each rank owns a slice of the tensor that is reduced or gathered. For an owner on another host,
// one rank of each host, the relay (Topology::relay), exchanges the data of its whole host with
// that owner: it sends the sum of the host's ranks and receives the result. So each slice crosses
// the link once per host in each direction.
class Collectives final : public HostTransport {
 public:
  // Collective: ranks meet through options.store. Throws CommError if they cannot meet, and
  // DeviceError if libzerorun_gloo.so cannot be opened.
  Collectives(const GroupOptions& options, Topology topology);
  ~Collectives() override;

  // Peers' memory is read within a host only.
  TransportTraits traits() const override {
    return {.name = alone_everywhere_ ? "gloo" : "shm+gloo",
            .local_world_size = local_world_size()};
  }
  void bound_link(DType dtype) override { bound_ = dtype; }
  void abort(std::string_view reason) noexcept override;
  void set_error(std::string_view error) noexcept override { watch_->set_error(error); }
  std::string error() override { return local_.error(); }
  // Those of this host; Watch checks the others.
  void check_peers(std::string_view what) override { local_.check_peers(what); }
  void leave() noexcept override;

 private:
  enum class Phase : uint64_t { announcement, scatter, gather };
  struct Operation;
  // The messages between hosts for one chunk of an all_reduce.
  struct Crossing;
  // The same of a reduce_scatter.
  struct Scatter;
  // The elements of all slices from `at` on, at most `numel`; `message`: at most from one host.
  struct ChunkOfSlices {
    int64_t at = 0;
    int64_t numel = 0;
    int64_t message = 0;
  };

  void run(const CollectiveCall& call) override;
  // Allocates memory that all ranks of this host can read.
  std::optional<Buffer> make_buffer(size_t nbytes, Sharing sharing) override;

  int rank() const { return options_.rank; }
  int local_world_size() const { return static_cast<int>(topology_.ranks_of(host_).size()); }
  bool alone() const { return local_world_size() == 1; }
  const std::vector<int>& local_ranks() const { return topology_.ranks_of(host_); }
  bool is_bound(DType in) const;
  // The dtype in which the sum of a host's ranks is sent.
  DType wire_dtype(DType in) const;
  // The dtype in which the sum of all ranks is sent.
  DType result_dtype(const CollectiveCall& call) const;
  // The tags of the messages of one chunk.
  static uint64_t tag_in(uint64_t round, Phase phase, int64_t piece);
  uint64_t tag(Phase phase, int64_t piece = 0) const { return tag_in(round_, phase, piece); }
  // The host's shared memory for sums of its ranks (partials) and for results. Each has three
  // slots: for the chunk that is reduced, for the previous one, whose messages are in flight, and
  // for the one before, which other ranks of the host may still be sending.
  static constexpr int kSlots = 3;
  TensorView partials(int slot, int64_t numel, DType dtype) const;
  TensorView results(int slot, int64_t numel, DType dtype) const;
  // Memory for the message from `host`.
  TensorView received(int slot, int host, int64_t numel, DType dtype);

  // begin() sends the peers the announcement of this operation; agree() waits for theirs and
  // compares them. No other message may be received before agree() has returned.
  void begin(Operation& operation);
  void agree(Operation& operation);
  void all_reduce(Operation& operation);
  void reduce_scatter(Operation& operation);
  void all_gather(Operation& operation);
  void all_to_all(Operation& operation);
  void exchange(Operation& operation, const Slices& slices, const ChunkOfSlices& chunk);
  void broadcast(Operation& operation);
  // Computes the sum of `in`, a part of the operation's input, over this host's ranks into `out`,
  // which may be the same as `in`. It is complete after finish_sums(), which may end several.
  TensorView sum_within_host(const Operation& operation, TensorView in, TensorView out);
  void finish_sums(const Operation& operation);
  Crossing start_crossing(Operation& operation, int slot, TensorView partial, TensorView result);
  void finish_crossing(const CollectiveCall& call, Crossing& crossing);
  void finish_chunk(const Operation& operation, Crossing& crossing, TensorView out);
  Scatter start_scatter(Operation& operation, int slot, int64_t begin, int64_t numel, DType wire);
  void finish_scatter(const CollectiveCall& call, Scatter& scatter);
  // Sets Operation::inputs and outputs. All ranks of this host have to have announced theirs.
  void find_memory(Operation& operation);
  // True if the sum of all ranks is what the output gets.
  bool is_output(const CollectiveCall& call) const {
    return call.output != Output::accumulate && result_dtype(call) == call.out.dtype;
  }
  // The elements of a chunk for all ranks.
  int64_t most_numel(DType dtype) const;
  // Copies the slices of the result that the other ranks of this host have received into `out`.
  void collect_result(const Operation& operation, TensorView out) const;
  // Calls `body(owner)` for each rank on another host for which this rank is the relay.
  template <typename Body>
  void for_owners(const Body& body) const;
  template <typename Body>
  void for_other_hosts(const Body& body) const;

  const GroupOptions options_;
  const Topology topology_;
  const int host_;
  const bool alone_everywhere_;    // each host has one rank
  const std::vector<int> linked_;  // ranks of other hosts to which this rank is connected
  shm::Collectives local_;
  std::unique_ptr<Links> links_;
  std::unique_ptr<Watch> watch_;
  Buffer window_;                                        // memory of partials() and results()
  std::array<std::vector<std::byte>, kSlots> received_;  // by host
  std::atomic<DType> bound_ = DType::fp32;
  uint64_t sequence_ = 0;  // operations begun
  uint64_t round_ = 0;     // chunks begun
};

}  // namespace zerorun::hierarchical
