#pragma once

#include <memory>

#include "comm/collective_call.h"
#include "comm/group_options.h"
#include "zerorun/communicator.h"

namespace zerorun {

// The base of all communicators: it checks and counts each call, and a transport runs it.
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
  CommStats stats() const final { return ledger_->stats(); }
  Subscription observe(CollectiveObserver observer) final {
    return ledger_->observe(std::move(observer));
  }

 protected:
  // Without a store in `options`, split() makes one for ranks of a host.
  explicit CallCommunicator(GroupOptions options)
      : options_(std::move(options)), ledger_(std::make_shared<CallLedger>(options_.parent)) {}

 private:
  // Makes the communicator of some of the ranks.
  virtual std::shared_ptr<Communicator> make_group(const GroupOptions& options) = 0;
  // Submits the collective of `call`, which has been checked, to the stream.
  virtual void submit(CollectiveCall call, Stream& stream) = 0;

  Event start(CollectiveCall call, Stream& stream);
  // submit, between two looks at the clock.
  void submit_observed(CollectiveCall call, Stream& stream);

  // The options of the group of this color; of nobody when there is none.
  GroupOptions group_of(const std::vector<int64_t>& words, int color) const;

  const GroupOptions options_;
  const std::shared_ptr<CallLedger> ledger_;
  int64_t splits_ = 0;
};

}  // namespace zerorun
