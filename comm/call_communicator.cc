#include "comm/call_communicator.h"

#include <string>
#include <utility>

namespace zerorun {

Event CallCommunicator::all_reduce(TensorView in, TensorView out, ReduceOp op, Output output,
                                   Stream& stream, std::string_view label) {
  return start({.op = Collective::all_reduce,
                .in = in,
                .out = out,
                .reduce = op,
                .output = output,
                .label = std::string(label)},
               stream);
}

Event CallCommunicator::reduce_scatter(TensorView in, TensorView out, Output output, Stream& stream,
                                       std::string_view label) {
  return start({.op = Collective::reduce_scatter,
                .in = in,
                .out = out,
                .output = output,
                .label = std::string(label)},
               stream);
}

Event CallCommunicator::all_gather(TensorView in, TensorView out, Sync sync, Stream& stream,
                                   std::string_view label) {
  return start({.op = Collective::all_gather,
                .in = in,
                .out = out,
                .sync = sync,
                .label = std::string(label)},
               stream);
}

Event CallCommunicator::broadcast(TensorView inout, int root, Stream& stream,
                                  std::string_view label) {
  return start({.op = Collective::broadcast,
                .in = inout,
                .out = inout,
                .root = root,
                .label = std::string(label)},
               stream);
}

Event CallCommunicator::barrier(Stream& stream, std::string_view label) {
  CollectiveCall call;
  call.label = label;
  return start(std::move(call), stream);
}

Event CallCommunicator::start(CollectiveCall call, Stream& stream) {
  check_call(call, rank_, world_size_);
  {
    const CollectiveCount added = count_of(call);
    const std::lock_guard lock(mutex_);
    CollectiveCount& count = stats_.by_op[static_cast<size_t>(call.op)];
    count.calls += added.calls;
    count.elements += added.elements;
    count.bytes += added.bytes;
  }
  submit(std::move(call), stream);
  return stream.record();
}

CommStats CallCommunicator::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace zerorun
