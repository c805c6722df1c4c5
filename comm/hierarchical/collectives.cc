#include "comm/hierarchical/collectives.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "comm/gloo/backend.h"
#include "comm/hierarchical/connecting.h"
#include "comm/hierarchical/operation.h"
#include "core/check.h"
#include "device/plugin.h"

namespace zerorun::hierarchical {

namespace {

constexpr uint64_t kPhases = 4;
constexpr uint64_t kPieces = 1024;  // of a rank's slice of a chunk, at most

std::vector<int> linked_ranks(const Topology& topology, int rank) {
  const int host = topology.host_of(rank);
  std::vector<int> linked;
  for (int other = 0; other < topology.hosts(); ++other) {
    if (other == host) continue;
    for (const int peer : topology.ranks_of(other)) {
      if (topology.relay(other, rank) == peer || topology.relay(host, peer) == rank) {
        linked.push_back(peer);
      }
    }
  }
  std::sort(linked.begin(), linked.end());
  return linked;
}

bool one_rank_each(const Topology& topology) {
  for (int host = 0; host < topology.hosts(); ++host) {
    if (topology.ranks_of(host).size() > 1) return false;
  }
  return true;
}

GroupOptions options_within(const GroupOptions& options, const Topology& topology) {
  const int host = topology.host_of(options.rank);
  GroupOptions within = options;
  within.rank = topology.local_rank(options.rank);
  within.world_size = static_cast<int>(topology.ranks_of(host).size());
  within.numbers.clear();
  for (const int rank : topology.ranks_of(host)) within.numbers.push_back(options.number(rank));
  within.name = fmt::format("{}/host/{}", options.name, host);
  return within;
}

const GlooBackend& open_gloo() {
  try {
    return plugin_entry<GlooBackend>(open_plugin(kGlooLibrary), kGlooBackendEntry);
  } catch (const DeviceError& error) {
    fail<CommError>(
        "CPU ranks on several hosts need Gloo, which this zerorun cannot open (Debian's libgloo0; "
        "libgloo-dev when it is built): {}",
        error.what());
  }
}

std::span<std::byte> bytes_of(shm::Announcement& announcement) {
  return {reinterpret_cast<std::byte*>(&announcement), sizeof(announcement)};
}

}  // namespace

Collectives::Collectives(const GroupOptions& options, Topology topology)
    : options_(options),
      topology_(std::move(topology)),
      rank_(options.rank),
      host_(topology_.host_of(options.rank)),
      alone_everywhere_(one_rank_each(topology_)),
      linked_(linked_ranks(topology_, options.rank)),
      local_(options_within(options, topology_)) {
  const Connecting connecting(options_, topology_);
  try {
    links_ = open_gloo().connect(
        {.rank = rank_,
         .world_size = options.world_size,
         .peers = linked_,
         .name_of_rank = [this](int peer) { return topology_.name_of_rank(peer); },
         .store = options.store,
         .prefix = options.name + "/link/",
         .address = choose_address(options),
         .get = [&](int peer, const std::string& key) { return connecting.get(peer, key); },
         .run = [&](int peer, const auto& connect,
                    const auto& cancel) { connecting.run(peer, connect, cancel); }});
    watch_ = std::make_unique<Watch>(options_, topology_, local_.control(), *links_);
    window_ = *local_.make_buffer(size_t{2} * kSlots * kWindowBytes, Sharing::per_host);
  } catch (...) {
    local_.control().leave();
    throw;
  }
}

Collectives::~Collectives() {
  if (watch_->is_this_process()) return;
  // A forked child has no threads to join.
  links_.release();  // NOLINT(bugprone-unused-return-value)
}

void Collectives::abort(std::string_view reason) noexcept {
  try {
    watch_->set_error(fmt::format("{} aborted the job: {}", topology_.name_of_rank(rank_), reason));
  } catch (const std::exception&) {  // no memory for the text
    watch_->set_error(reason);
  }
}

void Collectives::leave() noexcept {
  if (!watch_->is_this_process()) return;
  local_.control().leave();
  watch_->leave(linked_);
  links_->cancel();
}

std::shared_ptr<Transport> make_transport(const GroupOptions& options, Topology topology) {
  try {
    return std::make_shared<Collectives>(options, std::move(topology));
  } catch (const std::exception& error) {  // the peers wait for this rank
    report_error(options, error.what());
    throw;
  }
}

std::optional<Buffer> Collectives::make_buffer(size_t nbytes, Sharing sharing) {
  try {
    const bool per_rank = sharing == Sharing::per_rank;
    // An aborted job has no memory, whatever it is asked for.
    std::optional<Buffer> buffer = local_.make_buffer(per_rank ? nbytes : 0, Sharing::per_rank);
    return per_rank ? std::move(buffer) : std::nullopt;
  } catch (const DeviceError&) {
    watch_->set_error(local_.control().error());
    throw;
  } catch (const CommError& error) {
    watch_->fail(error.what());
  }
}

void Collectives::run(const CollectiveCall& call) {
  try {
    local_.control().check();
    Operation operation(*this, call);
    begin(operation);
    switch (call.op) {
      case Collective::all_reduce:
        return all_reduce(operation);
      case Collective::reduce_scatter:
        return reduce_scatter(operation);
      case Collective::all_gather:
        return all_gather(operation);
      case Collective::all_to_all:
        return all_to_all(operation);
      case Collective::broadcast:
        return broadcast(operation);
      case Collective::barrier:
        agree(operation);
        local_.control().advance();
    }
  } catch (const std::exception& error) {
    watch_->fail(error.what());  // peers must not wait; an earlier failure stays the error
  }
}

uint64_t Collectives::tag_in(uint64_t round, Phase phase, int64_t piece) {
  return (round * kPieces + static_cast<uint64_t>(piece)) * kPhases + static_cast<uint64_t>(phase);
}

TensorView Collectives::partials(int slot, int64_t numel, DType dtype) const {
  return view_of(window_, dtype, numel, static_cast<size_t>(slot) * kWindowBytes);
}

TensorView Collectives::results(int slot, int64_t numel, DType dtype) const {
  return view_of(window_, dtype, numel, static_cast<size_t>(kSlots + slot) * kWindowBytes);
}

void Collectives::begin(Operation& operation) {
  ++round_;
  for (size_t i = 0; i < linked_.size(); ++i) {
    operation.greetings.receive(linked_[i], tag(Phase::greeting), bytes_of(operation.peers[i]));
  }
  shm::Control& control = local_.control();
  operation.announcement.in = local_.locate(operation.call.in);
  operation.announcement.out = local_.locate(operation.call.out);
  control.announce(operation.announcement, operation.call.label);
  control.advance();
  control.check_agreement();
  find_inputs(operation);
  if (operation.call.op == Collective::all_reduce) find_outputs(operation);
  for (const int peer : linked_) {
    operation.greetings.send(peer, tag(Phase::greeting), bytes_of(operation.announcement));
  }
}

void Collectives::find_inputs(Operation& operation) {
  const CollectiveCall& call = operation.call;
  if (alone() || call.in.nbytes() <= kStagedBytes) return;
  for (int peer = 0; peer < local_world_size(); ++peer) {
    const shm::Location place = local_.control().announcement(peer).in;
    if (!place.shared()) return operation.inputs.clear();
    operation.inputs.push_back(local_.address(place, call.in.nbytes(), peer));
  }
}

void Collectives::agree(Operation& operation) {
  operation.greetings.wait();
  for (size_t i = 0; i < linked_.size(); ++i) {
    if (same_operation(operation.announcement, operation.peers[i])) continue;
    const std::string mine =
        fmt::format("{} calls {}", topology_.name_of_rank(rank_), describe(operation.announcement));
    const std::string theirs = fmt::format("{} calls {}", topology_.name_of_rank(linked_[i]),
                                           describe(operation.peers[i]));
    const bool first = rank_ < linked_[i];
    fail<CommError>(
        "ranks diverged: {}, but {}; every rank must make the same calls in the same order",
        first ? mine : theirs, first ? theirs : mine);
  }
}

// The messages of a chunk are on their way while the ranks of each host copy the previous one.
void Collectives::all_gather(Operation& operation) {
  const CollectiveCall& call = operation.call;
  const int64_t part = call.in.numel;
  const auto most = static_cast<int64_t>((alone_everywhere_ ? kDirectBytes : kWindowBytes) /
                                         size_of(call.in.dtype));
  const int64_t chunk = std::max<int64_t>(1, most / options_.world_size);
  const auto numel_of = [&](int64_t at) { return std::min(chunk, part - at); };
  const auto place = [&](int64_t at, int owner) {
    return call.out.slice(owner * part + at, numel_of(at));
  };
  const auto row = [&](int64_t at, int owner) {
    if (alone()) return place(at, owner);
    const int64_t numel = numel_of(at);
    const int slot = static_cast<int>(at / chunk % kSlots);
    return results(slot, numel * options_.world_size, call.in.dtype).slice(owner * numel, numel);
  };
  const auto start = [&](int64_t at) {
    ++round_;
    Messages messages = operation.messages(*this);
    for_owners(
        [&](int owner) { messages.receive(owner, tag(Phase::gather), bytes_of(row(at, owner))); });
    const TensorView own = call.in.slice(at, numel_of(at));
    for_other_hosts([&](int host) {
      messages.send(topology_.relay(host, rank_), tag(Phase::gather), bytes_of(own));
    });
    if (operation.inputs.empty()) copy(own, row(at, rank_));
    return messages;
  };
  // What this rank copies to its output once the chunk's messages are there.
  const auto source = [&](int64_t at, int owner) {
    if (owner == rank_) return call.in.slice(at, numel_of(at));
    if (operation.inputs.empty() || topology_.host_of(owner) != host_) return row(at, owner);
    const auto local = static_cast<size_t>(topology_.local_rank(owner));
    return TensorView{operation.inputs[local].get(), part, call.in.dtype}.slice(at, numel_of(at));
  };
  agree(operation);
  if (part == 0) return;
  std::optional<Messages> messages(start(0));
  for (int64_t at = 0; at < part; at += chunk) {
    messages->wait();
    // This host has the chunk, and its ranks have copied the previous one, whose slot is free.
    if (!alone()) local_.control().advance();
    if (at + chunk < part) messages.emplace(start(at + chunk));
    for (int owner = 0; owner < options_.world_size && !alone(); ++owner) {
      copy(source(at, owner), place(at, owner));
    }
  }
  // Its owner may change an input once the others have read it.
  if (!operation.inputs.empty()) local_.control().advance();
}

// The slices of a host's ranks for a rank elsewhere cross as one message, from the window.
void Collectives::all_to_all(Operation& operation) {
  const CollectiveCall& call = operation.call;
  const int64_t row = call.in.numel / options_.world_size;
  int most_local = 1;
  for (int host = 0; host < topology_.hosts(); ++host) {
    most_local = std::max(most_local, static_cast<int>(topology_.ranks_of(host).size()));
  }
  const auto most = static_cast<int64_t>((alone_everywhere_ ? kDirectBytes : kWindowBytes) /
                                         size_of(call.in.dtype));
  const int64_t chunk = std::max<int64_t>(1, most / options_.world_size / most_local);
  const int here = local_world_size();
  agree(operation);
  for (int64_t at = 0; at < row; at += chunk) {
    const int64_t numel = std::min(chunk, row - at);
    const TensorView window = results(0, numel * options_.world_size * here, call.in.dtype);
    const auto slice = [&](TensorView whole, int rank) {
      return whole.slice(rank * row + at, numel);
    };
    const auto place = [&](int owner, int local) {
      return window.slice((owner * here + local) * numel, numel);
    };
    ++round_;
    Messages messages = operation.messages(*this);
    for_other_hosts([&](int host) {
      const auto count = static_cast<int64_t>(topology_.ranks_of(host).size());
      messages.receive(
          topology_.relay(host, rank_), tag(Phase::scatter),
          bytes_of(received(0, host, numel * most_local, call.in.dtype).slice(0, numel * count)));
    });
    if (at > 0 && !alone()) local_.control().advance();  // all have read the last chunk
    for (int owner = 0; owner < options_.world_size && !alone(); ++owner) {
      copy(slice(call.in, owner), place(owner, topology_.local_rank(rank_)));
    }
    if (!alone()) local_.control().advance();
    for_owners([&](int owner) {
      const TensorView sent =
          alone() ? slice(call.in, owner) : place(owner, 0).slice(0, numel * here);
      messages.send(owner, tag(Phase::scatter), bytes_of(sent));
    });
    for (int local = 0; local < here; ++local) {
      const int source = local_ranks()[static_cast<size_t>(local)];
      copy(alone() ? slice(call.in, rank_) : place(rank_, local), slice(call.out, source));
    }
    messages.wait();
    for_other_hosts([&](int host) {
      const TensorView all = received(0, host, numel * most_local, call.in.dtype);
      for (const int source : topology_.ranks_of(host)) {
        copy(all.slice(topology_.local_rank(source) * numel, numel), slice(call.out, source));
      }
    });
  }
}

void Collectives::broadcast(Operation& operation) {
  const CollectiveCall& call = operation.call;
  const auto chunk = static_cast<int64_t>((alone_everywhere_ ? kDirectBytes : kWindowBytes) /
                                          size_of(call.out.dtype));
  const int root_host = topology_.host_of(call.root);
  const bool gives = rank_ == call.root;
  agree(operation);
  for (int64_t at = 0; at < call.out.numel; at += chunk) {
    const TensorView out = call.out.slice(at, std::min(chunk, call.out.numel - at));
    const TensorView row = alone() ? out : results(0, out.numel, out.dtype);
    ++round_;
    if (at > 0 && !alone()) local_.control().advance();  // all have read the last chunk
    Messages messages = operation.messages(*this);
    if (gives) {
      for_other_hosts([&](int host) {
        messages.send(topology_.relay(host, rank_), tag(Phase::gather), bytes_of(out));
      });
      copy(out, row);
    } else if (host_ != root_host && topology_.relay(host_, call.root) == rank_) {
      messages.receive(call.root, tag(Phase::gather), bytes_of(row));
    }
    messages.wait();
    if (alone()) continue;
    local_.control().advance();
    if (!gives) copy(row, out);
  }
}

}  // namespace zerorun::hierarchical
