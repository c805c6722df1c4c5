#include "comm/call_communicator.h"

#include <chrono>
#include <limits>
#include <string>
#include <utility>

#include "device/cpu/cpu_stream.h"

namespace zerorun {

namespace {

double seconds_now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace

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
  std::shared_ptr<const CollectiveObserver> observer;
  {
    const CollectiveCount added = count_of(call);
    const std::lock_guard lock(mutex_);
    CollectiveCount& count = stats_.by_op[static_cast<size_t>(call.op)];
    count.calls += added.calls;
    count.elements += added.elements;
    count.bytes += added.bytes;
    observer = observer_;
  }
  if (observer == nullptr) {
    submit(std::move(call), stream);
  } else {
    submit_observed(std::move(call), stream, observer);
  }
  return stream.record();
}

void CallCommunicator::submit_observed(CollectiveCall call, Stream& stream,
                                       const std::shared_ptr<const CollectiveObserver>& observer) {
  const auto span = std::make_shared<CollectiveSpan>(
      CollectiveSpan{.op = call.op, .label = call.label, .bytes = count_of(call).bytes});
  auto* const host = dynamic_cast<CpuStream*>(&stream);
  if (host == nullptr) {
    span->begin_s = span->end_s = std::numeric_limits<double>::quiet_NaN();
    submit(std::move(call), stream);
    (*observer)(*span);
    return;
  }
  host->submit([span] { span->begin_s = seconds_now(); });
  submit(std::move(call), stream);
  host->submit([span, observer] {
    span->end_s = seconds_now();
    (*observer)(*span);
  });
}

void CallCommunicator::observe(CollectiveObserver observer) {
  std::shared_ptr<const CollectiveObserver> next;
  if (observer) next = std::make_shared<const CollectiveObserver>(std::move(observer));
  const std::lock_guard lock(mutex_);
  observer_ = std::move(next);
}

CommStats CallCommunicator::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace zerorun
