#pragma once

#include <memory>
#include <mutex>

#include "comm/collective_call.h"
#include "zerorun/communicator.h"

namespace zerorun {

// The base of all communicators: it checks and counts each call, and a transport runs it.
class CallCommunicator : public Communicator {
 public:
  int rank() const final { return rank_; }
  int world_size() const final { return world_size_; }
  Event all_reduce(TensorView in, TensorView out, ReduceOp op, Output output, Stream& stream,
                   std::string_view label) final;
  Event reduce_scatter(TensorView in, TensorView out, Output output, Stream& stream,
                       std::string_view label) final;
  Event all_gather(TensorView in, TensorView out, Sync sync, Stream& stream,
                   std::string_view label) final;
  Event broadcast(TensorView inout, int root, Stream& stream, std::string_view label) final;
  Event barrier(Stream& stream, std::string_view label) final;
  CommStats stats() const final;
  void observe(CollectiveObserver observer) final;

 protected:
  CallCommunicator(int rank, int world_size) : rank_(rank), world_size_(world_size) {}

 private:
  // Submits the collective of `call`, which has been checked, to the stream.
  virtual void submit(CollectiveCall call, Stream& stream) = 0;

  Event start(CollectiveCall call, Stream& stream);
  // submit, between two looks at the clock.
  void submit_observed(CollectiveCall call, Stream& stream,
                       const std::shared_ptr<const CollectiveObserver>& observer);

  const int rank_;
  const int world_size_;
  mutable std::mutex mutex_;
  CommStats stats_;                                     // guarded by mutex_, like the next
  std::shared_ptr<const CollectiveObserver> observer_;  // null: nobody asked
};

}  // namespace zerorun
