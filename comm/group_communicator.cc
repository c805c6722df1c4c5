#include "comm/group_communicator.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "comm/agreement.h"
#include "comm/rendezvous/tcp_store.h"
#include "core/check.h"
#include "device/cpu/cpu_stream.h"

namespace zerorun {

GroupCommunicator::GroupCommunicator(GroupOptions options, std::shared_ptr<Transport> transport,
                                     std::shared_ptr<CallLedger> parent)
    : options_(std::move(options)),
      ledger_(std::make_shared<CallLedger>(std::move(parent))),
      transport_(std::move(transport)),
      traits_(transport_->traits()),
      membership_(options_.job->join(
          {.set_error = [transport = transport_](auto error) { transport->set_error(error); },
           .error = [transport = transport_] { return transport->error(); }})) {}

Event GroupCommunicator::all_reduce(TensorView in, TensorView out, ReduceOp op, Output output,
                                    Stream& stream, std::string_view label) {
  return start({.op = Collective::all_reduce, .in = in, .out = out, .reduce = op, .output = output},
               stream, label);
}

Event GroupCommunicator::reduce_scatter(TensorView in, TensorView out, Output output,
                                        Stream& stream, std::string_view label) {
  return start({.op = Collective::reduce_scatter, .in = in, .out = out, .output = output}, stream,
               label);
}

Event GroupCommunicator::all_gather(TensorView in, TensorView out, Sync sync, Stream& stream,
                                    std::string_view label) {
  return start({.op = Collective::all_gather, .in = in, .out = out, .sync = sync}, stream, label);
}

Event GroupCommunicator::all_to_all(TensorView in, TensorView out, Stream& stream,
                                    std::string_view label) {
  return start({.op = Collective::all_to_all, .in = in, .out = out}, stream, label);
}

Event GroupCommunicator::redistribute(TensorView in, TensorView out,
                                      std::shared_ptr<const Cuts> cuts, Stream& stream,
                                      std::string_view label) {
  ZR_CHECK(cuts, "redistribute '{}': got no cuts", label);
  return start({.op = Collective::all_to_all, .in = in, .out = out, .cuts = std::move(cuts)},
               stream, label);
}

Event GroupCommunicator::broadcast(TensorView inout, int root, Stream& stream,
                                   std::string_view label) {
  return start({.op = Collective::broadcast, .in = inout, .out = inout, .root = root}, stream,
               label);
}

Event GroupCommunicator::barrier(Stream& stream, std::string_view label) {
  return start({.op = Collective::barrier}, stream, label);
}

Event GroupCommunicator::start(CollectiveCall call, Stream& stream, std::string_view label) {
  call.label = label;
  check_call(call, rank(), world_size());
  if (!options_.group.empty()) call.label = fmt::format("{}: {}", options_.group, call.label);
  ledger_->add(call);
  return ledger_->is_observed() ? start_observed(call, stream) : submit(call, stream);
}

Event GroupCommunicator::start_observed(CollectiveCall& call, Stream& stream) {
  const auto span = std::make_shared<CollectiveSpan>(
      CollectiveSpan{.op = call.op, .label = call.label, .bytes = count_of(call).bytes});
  if (options_.device && !options_.device->is_host()) {
    span->begin_s = span->end_s = std::numeric_limits<double>::quiet_NaN();
    Event done = submit(call, stream);
    ledger_->inform(*span);
    return done;
  }
  CpuStream& host = cpu_stream(stream);
  host.submit([span] { span->begin_s = steady_seconds(); });
  submit(call, stream);
  host.submit([span, ledger = ledger_] {
    span->end_s = steady_seconds();
    ledger->inform(*span);
  });
  return stream.record();
}

Event GroupCommunicator::coalesced(Stream& stream, const std::function<void()>& calls) {
  if (!traits_.overlaps) {
    calls();
    return stream.record();
  }
  ZR_CHECK(coalesced_ == nullptr, "coalesced() within coalesced()");
  std::vector<CollectiveCall> collected;
  coalesced_ = &collected;
  try {
    calls();
  } catch (...) {
    coalesced_ = nullptr;
    throw;
  }
  coalesced_ = nullptr;
  return collected.empty() ? stream.record() : transport_->start(collected, stream);
}

std::shared_ptr<Communicator> GroupCommunicator::split(int color, int key, std::string_view name) {
  const std::unique_ptr<Stream> own = options_.device ? nullptr : make_inline_stream();
  Stream& stream = own ? *own : options_.device->inline_stream();
  Agreement agreement(*this, stream);
  GroupOptions group = group_of(
      agreement.gather(std::array<int64_t, 2>{color, key}, "colors and keys of a split"), color);
  group.name = fmt::format("{}/split{}/{}", options_.name, ++splits_, color);
  group.group = name;
  group.check_parent = [this, what = fmt::format("the split into '{}'", name)] {
    transport_->check_peers(what);
  };
  try {
    if (!group.store && world_size() > 1) {
      group.store = make_host_store(*this, stream, options_.timeout);
    }
  } catch (const CommError&) {
    group.check_parent();  // the rank that serves the store may have died
    throw;
  }
  std::shared_ptr<Communicator> made;
  // The store has to stay until all have met.
  const std::shared_ptr<Store> store = group.store;
  agreement.run("a split into groups", [&] {
    if (color < 0) return;
    std::shared_ptr<Transport> transport = transport_->make_group(group);
    made = std::make_shared<GroupCommunicator>(group, std::move(transport), ledger_);
  });
  return made;
}

Communicator& GroupCommunicator::second_lane(std::string_view name) {
  if (!traits_.overlaps) return *this;
  if (!second_lane_) {
    const std::string& own = options_.group;
    second_lane_ =
        split(0, rank(), own.empty() ? std::string(name) : fmt::format("{}, {}", own, name));
  }
  return *second_lane_;
}

GroupOptions GroupCommunicator::group_of(const std::vector<int64_t>& words, int color) const {
  std::vector<std::pair<int64_t, int>> members;  // key, rank
  for (int peer = 0; peer < world_size(); ++peer) {
    const auto at = 2 * static_cast<size_t>(peer);
    if (words[at] == color) members.emplace_back(words[at + 1], peer);
  }
  std::sort(members.begin(), members.end());
  GroupOptions group = options_;
  group.world_size = static_cast<int>(members.size());
  group.numbers.clear();
  for (const auto& [key, peer] : members) {
    if (peer == rank()) group.rank = static_cast<int>(group.numbers.size());
    group.numbers.push_back(options_.number(peer));
  }
  return group;
}

void bound_link(Communicator& communicator, DType dtype) {
  if (auto* const own = dynamic_cast<GroupCommunicator*>(&communicator)) own->bound_link(dtype);
}

}  // namespace zerorun
