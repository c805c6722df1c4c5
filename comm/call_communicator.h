#pragma once

#include <memory>

#include "comm/collective_call.h"
#include "comm/group_options.h"
#include "zerorun/communicator.h"

namespace zerorun {

// The base class of all communicators. It checks the arguments of each call, counts it, informs
// observers, and passes it to submit(), which a transport implements. It also implements split().
class CallCommunicator : public Communicator {
 public:
  int rank() const final { return options_.rank; }
  int world_size() const final { return options_.world_size; }
  Event all_reduce(TensorView in, TensorView out, ReduceOp op, Output output, Stream& stream,
                   std::string_view label) final;
  Event reduce_scatter(TensorView in, TensorView out, Output output, Stream& stream,
                       std::string_view label) final;
  Event all_gather(TensorView in, TensorView out, Sync sync, Stream& stream,
                   std::string_view label) final;
  Event all_to_all(TensorView in, TensorView out, Stream& stream, std::string_view label) final;
  Event broadcast(TensorView inout, int root, Stream& stream, std::string_view label) final;
  Event barrier(Stream& stream, std::string_view label) final;
  std::shared_ptr<Communicator> split(int color, int key, std::string_view name) final;
  Communicator& second_lane(std::string_view name) final;
  CommStats stats() const final { return ledger_->stats(); }
  Subscription observe(CollectiveObserver observer) final {
    return ledger_->observe(std::move(observer));
  }
  // Throws CommError if the communicator has an error, or if a peer has left or died while this
  // rank waited for it in `what`. Called often by a rank that waits outside of collectives.
  virtual void look_at_peers(std::string_view /*what*/) {}

 protected:
  // If `options` has no store, split() makes one, which works for ranks of one host only.
  explicit CallCommunicator(GroupOptions options)
      : options_(std::move(options)), ledger_(std::make_shared<CallLedger>(options_.parent)) {}

 private:
  // True if calls of another communicator of the same ranks run beside those of this one, with no
  // cost to the caller.
  virtual bool has_lanes() const { return false; }
  // Makes the communicator of a subset of the ranks, for split().
  virtual std::shared_ptr<Communicator> make_group(const GroupOptions& options) = 0;
  // Submits the collective of `call`, which has been checked, to the stream.
  virtual void submit(CollectiveCall call, Stream& stream) = 0;
  // The event with which the collective is done that was submitted last, to `stream`.
  virtual Event submitted(Stream& stream) { return stream.record(); }

  Event start(CollectiveCall call, Stream& stream);
  // Calls submit() and records when the collective started and ended, for observers.
  void submit_observed(CollectiveCall call, Stream& stream);

  // The options of the group of all ranks with this color. `words` has the color and key of each
  // rank.
  GroupOptions group_of(const std::vector<int64_t>& words, int color) const;

  const GroupOptions options_;
  const std::shared_ptr<CallLedger> ledger_;
  int64_t splits_ = 0;
  std::shared_ptr<Communicator> second_lane_;
};

}  // namespace zerorun
