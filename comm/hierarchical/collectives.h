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

// The collectives of ranks on several hosts, on the caller's thread: shared memory within a host,
// links between hosts. Calls come one at a time, in the same order on every rank.
//
// Each rank owns a slice of what is reduced or gathered. What the ranks of a host have to do with a
// slice whose owner is elsewhere goes through one of them (Topology::relay), so it crosses the link
// once for each host: on its way to the owner as the sum of the host's ranks, and on its way back.
class Collectives {
 public:
  Collectives(const GroupOptions& options, Topology topology);
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;
  ~Collectives();

  void run(const CollectiveCall& call);
  // Memory that the ranks of this host can read.
  Buffer allocate(size_t nbytes);

  // As LinkBound's.
  void bound_link(DType dtype) { bound_ = dtype; }

  // May be called by any thread.
  void abort(std::string_view reason) noexcept;
  // Makes `error` that of all ranks, unless there was one before.
  void set_error(std::string_view error) noexcept { watch_->set_error(error); }
  // The error of an earlier failure on this host; empty: there was none.
  std::string error() { return local_.control().error(); }
  // This rank takes part no more.
  void leave() noexcept;

  const Topology& topology() const { return topology_; }
  // True when each host has one rank.
  bool links_only() const { return alone_everywhere_; }
  int local_world_size() const { return static_cast<int>(topology_.ranks_of(host_).size()); }

 private:
  enum class Phase : uint64_t { greeting, scatter, gather };
  struct Operation;
  // A chunk of an all_reduce on its way between the hosts.
  struct Crossing;

  bool alone() const { return local_world_size() == 1; }
  const std::vector<int>& local_ranks() const { return topology_.ranks_of(host_); }
  bool is_bound(DType in) const;
  // The dtype in which sums of a host's ranks cross the link.
  DType wire_dtype(DType in) const;
  // The dtype in which the whole sum does.
  DType result_dtype(const CollectiveCall& call) const;
  // Tags of the messages of a chunk.
  static uint64_t tag_in(uint64_t round, Phase phase, int64_t piece);
  uint64_t tag(Phase phase, int64_t piece = 0) const { return tag_in(round_, phase, piece); }
  // The host's memory for sums of its ranks, and for results. Of the two halves of each, one is for
  // the chunk that is on its way.
  static constexpr int kHalves = 2;
  TensorView partials(int half, int64_t numel, DType dtype) const;
  TensorView results(int half, int64_t numel, DType dtype) const;
  // Memory for what `host` sends.
  TensorView received(int half, int host, int64_t numel, DType dtype);

  // Tells the peers which operation it is; agree() waits until they have done the same. Before
  // that nothing else may be received.
  void begin(Operation& operation);
  void agree(Operation& operation);
  void all_reduce(Operation& operation);
  void reduce_scatter(Operation& operation);
  void all_gather(Operation& operation);
  void all_to_all(Operation& operation);
  void broadcast(Operation& operation);
  // The sum of `in` over this host's ranks, in `out` or, where that is the same, in place.
  TensorView sum_within_host(const Operation& operation, TensorView in, TensorView out);
  Crossing start_crossing(Operation& operation, int half, TensorView partial, TensorView result);
  void finish_crossing(const CollectiveCall& call, Crossing& crossing);
  void finish_chunk(const Operation& operation, Crossing& crossing, TensorView out);
  // Finds Operation::outputs; all ranks of the host have announced theirs.
  void find_outputs(Operation& operation);
  // Takes what the host's other ranks have received of the result.
  void collect_result(const Operation& operation, TensorView out) const;
  // Calls `body` for each owner on another host for which this rank is the relay.
  template <typename Body>
  void for_owners(const Body& body) const;
  template <typename Body>
  void for_other_hosts(const Body& body) const;

  const GroupOptions options_;
  const Topology topology_;
  const int rank_;
  const int host_;  // of this rank
  const bool alone_everywhere_;
  const std::vector<int> linked_;  // the ranks of other hosts with which this one has connections
  shm::Collectives local_;
  std::unique_ptr<Links> links_;
  std::unique_ptr<Watch> watch_;
  Buffer window_;                                         // of this host: partials() and results()
  std::array<std::vector<std::byte>, kHalves> received_;  // by host
  std::atomic<DType> bound_ = DType::fp32;
  uint64_t sequence_ = 0;  // how many operations began
  uint64_t round_ = 0;     // how many chunks began
};

}  // namespace zerorun::hierarchical
