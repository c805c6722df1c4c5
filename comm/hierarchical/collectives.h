#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/collective_call.h"
#include "comm/hierarchical/messages.h"
#include "comm/hierarchical/topology.h"
#include "comm/hierarchical/watch.h"
#include "comm/links.h"
#include "comm/shm/collectives.h"

namespace zerorun::hierarchical {

// The collectives of ranks on several hosts: shared memory within a host, point-to-point links
// between hosts. They run on the caller's thread, one at a time, in the same order on every rank.
//
// Each rank owns a slice of the tensor that is reduced or gathered. For an owner on another host,
// one rank of each host, the relay (Topology::relay), exchanges the data of its whole host with
// that owner: it sends the sum of the host's ranks and receives the result. So each slice crosses
// the link once per host in each direction.
class Collectives {
 public:
  Collectives(const GroupOptions& options, Topology topology);
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;
  ~Collectives();

  void run(const CollectiveCall& call);
  // Allocates memory that all ranks of this host can read.
  Buffer allocate(size_t nbytes);

  // See LinkBound.
  void bound_link(DType dtype) { bound_ = dtype; }

  // Makes all calls on all ranks throw CommError. Any thread may call it.
  void abort(std::string_view reason) noexcept;
  // Makes `error` the error of all ranks, unless they already have one.
  void set_error(std::string_view error) noexcept { watch_->set_error(error); }
  // The error of this host's ranks; empty: none.
  std::string error() { return local_.control().error(); }
  // Throws CommError if there is an error, or if a rank of this host has left or died.
  void look_at_peers(std::string_view what) { local_.control().look_at_peers(what); }
  // Tells all peers that this rank makes no more calls.
  void leave() noexcept;

  const Topology& topology() const { return topology_; }
  // True when each host has one rank.
  bool links_only() const { return alone_everywhere_; }
  int local_world_size() const { return static_cast<int>(topology_.ranks_of(host_).size()); }

 private:
  enum class Phase : uint64_t { greeting, scatter, gather };
  struct Operation;
  // The messages between hosts for one chunk of an all_reduce.
  struct Crossing;
  // The same of a reduce_scatter.
  struct Scatter;

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
  // Set Operation::inputs and outputs. All ranks of this host have to have announced theirs.
  void find_inputs(Operation& operation);
  void find_outputs(Operation& operation);
  // Copies the slices of the result that the other ranks of this host have received into `out`.
  void collect_result(const Operation& operation, TensorView out) const;
  // Calls `body(owner)` for each rank on another host for which this rank is the relay.
  template <typename Body>
  void for_owners(const Body& body) const;
  template <typename Body>
  void for_other_hosts(const Body& body) const;

  const GroupOptions options_;
  const Topology topology_;
  const int rank_;
  const int host_;  // of this rank
  const bool alone_everywhere_;
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
