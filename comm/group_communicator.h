#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/group_options.h"
#include "comm/transport.h"
#include "core/observers.h"
#include "zerorun/communicator.h"

namespace zerorun {

// Counts a communicator's calls and informs its observers. Calls of a communicator made by split()
// also count for its parent, whose observers are informed too. Safe to use from several threads.
class CallLedger {
 public:
  // `parent`: the ledger of the communicator that was split; null if there is none.
  explicit CallLedger(std::shared_ptr<CallLedger> parent) : parent_(std::move(parent)) {}

  void add(const CollectiveCall& call) {
    if (parent_) parent_->add(call);
    const CollectiveCount added = count_of(call);
    const std::lock_guard lock(mutex_);
    CollectiveCount& count = stats_.by_op[static_cast<size_t>(call.op)];
    count.calls += added.calls;
    count.elements += added.elements;
    count.bytes += added.bytes;
  }
  CommStats stats() const {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

  Subscription observe(CollectiveObserver observer) { return observers_.add(std::move(observer)); }
  // False if neither this ledger nor a parent has observers; then the caller can skip taking times.
  bool is_observed() const { return observers_.any() || (parent_ && parent_->is_observed()); }
  void inform(const CollectiveSpan& span) {
    if (parent_) parent_->inform(span);
    observers_.notify(span);
  }

 private:
  const std::shared_ptr<CallLedger> parent_;
  mutable std::mutex mutex_;
  CommStats stats_;  // guarded by mutex_
  Observers<CollectiveSpan> observers_;
};

// The communicator of all ranks of a job, or of a group of them, over a Transport. It checks the
// arguments of each call, names it, counts it and informs observers. It also divides ranks into
// groups, and passes errors between them.
class GroupCommunicator final : public Communicator {
 public:
  // If `options` has no store, split() makes one, which works for ranks of one host only. `parent`:
  // see CallLedger.
  GroupCommunicator(GroupOptions options, std::shared_ptr<Transport> transport,
                    std::shared_ptr<CallLedger> parent = nullptr);
  GroupCommunicator(const GroupCommunicator&) = delete;
  GroupCommunicator& operator=(const GroupCommunicator&) = delete;
  ~GroupCommunicator() override { transport_->leave(); }

  int rank() const override { return options_.rank; }
  int world_size() const override { return options_.world_size; }
  int local_world_size() const override { return traits_.local_world_size; }
  std::string transport() const override { return traits_.name; }
  bool reads_peers() const override { return traits_.reads_peers; }
  std::optional<Buffer> allocate(size_t nbytes, Sharing sharing) override {
    return transport_->allocate(nbytes, sharing);
  }
  Event all_reduce(TensorView in, TensorView out, ReduceOp op, Output output, Stream& stream,
                   std::string_view label) override;
  Event reduce_scatter(TensorView in, TensorView out, Output output, Stream& stream,
                       std::string_view label) override;
  Event all_gather(TensorView in, TensorView out, Sync sync, Stream& stream,
                   std::string_view label) override;
  Event all_to_all(TensorView in, TensorView out, Stream& stream, std::string_view label) override;
  Event redistribute(TensorView in, TensorView out, std::shared_ptr<const Cuts> cuts,
                     Stream& stream, std::string_view label) override;
  Event broadcast(TensorView inout, int root, Stream& stream, std::string_view label) override;
  Event barrier(Stream& stream, std::string_view label) override;
  Event coalesced(Stream& stream, const std::function<void()>& calls) override;
  std::shared_ptr<Communicator> split(int color, int key, std::string_view name) override;
  Communicator& second_lane(std::string_view name) override;
  void abort(std::string_view reason) noexcept override { transport_->abort(reason); }
  CommStats stats() const override { return ledger_->stats(); }
  Subscription observe(CollectiveObserver observer) override {
    return ledger_->observe(std::move(observer));
  }
  void bound_link(DType dtype) { transport_->bound_link(dtype); }

 private:
  Event start(CollectiveCall call, Stream& stream, std::string_view label);
  Event submit(CollectiveCall& call, Stream& stream) {
    if (coalesced_ == nullptr) return transport_->start(std::span(&call, 1), stream);
    coalesced_->push_back(std::move(call));
    return {};
  }
  // Submits the call and records when it begins and ends, for observers.
  Event start_observed(CollectiveCall& call, Stream& stream);
  // The options of the group of all ranks with this color. `words` has the color and key of each
  // rank.
  GroupOptions group_of(const std::vector<int64_t>& words, int color) const;

  const GroupOptions options_;
  const std::shared_ptr<CallLedger> ledger_;
  int64_t splits_ = 0;
  std::vector<CollectiveCall>* coalesced_ = nullptr;  // the calls that coalesced() collects
  std::shared_ptr<Communicator> second_lane_;
  const std::shared_ptr<Transport> transport_;
  const TransportTraits traits_;
  const std::shared_ptr<void> membership_;  // in the error group
};

// After this call, sums of values of `dtype`, a 16-bit type, are sent between hosts in `dtype`:
// each host rounds the fp32 sum of its ranks once. That halves the bytes, but the result then
// depends on which ranks share a host. Without it such sums are sent in fp32. Either all ranks call
// it, before the first sum that it concerns, or none does. Has no effect if the communicator does
// not add over links between hosts.
void bound_link(Communicator& communicator, DType dtype);

}  // namespace zerorun
