#include "comm/call_communicator.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "comm/agreement.h"
#include "comm/rendezvous/host_store.h"
#include "device/cpu/cpu_stream.h"

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

Event CallCommunicator::all_to_all(TensorView in, TensorView out, Stream& stream,
                                   std::string_view label) {
  return start({.op = Collective::all_to_all, .in = in, .out = out, .label = std::string(label)},
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
  check_call(call, rank(), world_size());
  if (!options_.group.empty()) call.label = fmt::format("{}: {}", options_.group, call.label);
  ledger_->add(call);
  if (ledger_->asked()) {
    submit_observed(std::move(call), stream);
  } else {
    submit(std::move(call), stream);
  }
  return submitted(stream);
}

void CallCommunicator::submit_observed(CollectiveCall call, Stream& stream) {
  const auto span = std::make_shared<CollectiveSpan>(
      CollectiveSpan{.op = call.op, .label = call.label, .bytes = count_of(call).bytes});
  auto* const host = dynamic_cast<CpuStream*>(&stream);
  if (host == nullptr) {
    span->begin_s = span->end_s = std::numeric_limits<double>::quiet_NaN();
    submit(std::move(call), stream);
    ledger_->tell(*span);
    return;
  }
  host->submit([span] { span->begin_s = steady_seconds(); });
  submit(std::move(call), stream);
  host->submit([span, ledger = ledger_] {
    span->end_s = steady_seconds();
    ledger->tell(*span);
  });
}

std::shared_ptr<Communicator> CallCommunicator::split(int color, int key, std::string_view name) {
  const std::unique_ptr<Stream> own = options_.device ? nullptr : make_inline_stream();
  Stream& stream = own ? *own : options_.device->inline_stream();
  Agreement agreement(*this, stream);
  GroupOptions group = group_of(
      agreement.gather(std::array<int64_t, 2>{color, key}, "colors and keys of a split"), color);
  group.name = fmt::format("{}/split{}/{}", options_.name, ++splits_, color);
  group.group = name;
  group.look = [this, what = fmt::format("the split into '{}'", name)] { look_at_peers(what); };
  try {
    if (!group.store && world_size() > 1) {
      group.store = make_host_store(*this, stream, options_.timeout);
    }
  } catch (const CommError&) {
    group.look();  // the rank that serves the store may have died
    throw;
  }
  std::shared_ptr<Communicator> made;
  // The store has to stay until all have met.
  agreement.run("a split into groups", [&] {
    if (color >= 0) made = make_group(group);
  });
  return made;
}

Communicator& CallCommunicator::second_lane(std::string_view name) {
  if (!has_lanes()) return *this;
  if (!second_lane_) {
    const std::string& own = options_.group;
    second_lane_ =
        split(0, rank(), own.empty() ? std::string(name) : fmt::format("{}, {}", own, name));
  }
  return *second_lane_;
}

GroupOptions CallCommunicator::group_of(const std::vector<int64_t>& words, int color) const {
  std::vector<std::pair<int64_t, int>> members;  // key, rank
  for (int peer = 0; peer < world_size(); ++peer) {
    const auto at = 2 * static_cast<size_t>(peer);
    if (words[at] == color) members.emplace_back(words[at + 1], peer);
  }
  std::sort(members.begin(), members.end());
  GroupOptions group = options_;
  group.parent = ledger_;
  group.world_size = static_cast<int>(members.size());
  group.numbers.clear();
  for (const auto& [key, peer] : members) {
    if (peer == rank()) group.rank = static_cast<int>(group.numbers.size());
    group.numbers.push_back(options_.number(peer));
  }
  return group;
}

}  // namespace zerorun
