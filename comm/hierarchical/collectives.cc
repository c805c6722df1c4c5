#include "comm/hierarchical/collectives.h"

#include <algorithm>
#include <optional>
#include <utility>

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
      host_(topology_.host_of(options.rank)),
      alone_everywhere_(one_rank_each(topology_)),
      linked_(linked_ranks(topology_, options.rank)),
      local_(options_within(options, topology_)) {
  const Connecting connecting{options_, topology_};
  try {
    links_ = open_gloo().connect(
        {.rank = rank(),
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
    watch_->set_error(
        fmt::format("{} aborted the job: {}", topology_.name_of_rank(rank()), reason));
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

std::optional<Buffer> Collectives::make_buffer(size_t nbytes, Sharing sharing) {
  try {
    // An aborted job has no memory, whatever it is asked for.
    if (sharing != Sharing::per_host) return local_.make_buffer(nbytes, sharing);
    local_.make_buffer(0, Sharing::per_rank);
    return std::nullopt;
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
    operation.announcements.receive(linked_[i], tag(Phase::announcement),
                                    bytes_of(operation.peers[i]));
  }
  shm::Control& control = local_.control();
  operation.announcement.in = local_.locate(operation.call.in);
  operation.announcement.out = local_.locate(operation.call.out);
  control.announce(operation.announcement, operation.call.label);
  control.advance();
  control.check_agreement();
  if (!alone()) find_memory(operation);
  for (const int peer : linked_) {
    operation.announcements.send(peer, tag(Phase::announcement), bytes_of(operation.announcement));
  }
}

void Collectives::find_memory(Operation& operation) {
  const CollectiveCall& call = operation.call;
  const auto find = [&](shm::Location shm::Announcement::*place, size_t nbytes) {
    std::vector<std::shared_ptr<std::byte>> found;
    for (int peer = 0; peer < local_world_size(); ++peer) {
      const shm::Location location = local_.control().announcement(peer).*place;
      if (!location.shared()) return decltype(found)();
      found.push_back(local_.address(location, nbytes, peer));
    }
    return found;
  };
  // An all_to_all goes through the window, and with cuts inputs have different sizes.
  if (call.op != Collective::all_to_all && call.in.nbytes() > kStagedBytes) {
    operation.inputs = find(&shm::Announcement::in, call.in.nbytes());
  }
  if (call.op == Collective::all_reduce && is_output(call) && !call.out.empty()) {
    operation.outputs = find(&shm::Announcement::out, call.out.nbytes());
  }
}

int64_t Collectives::most_numel(DType dtype) const {
  return static_cast<int64_t>((alone_everywhere_ ? kDirectBytes : kWindowBytes) / size_of(dtype));
}

void Collectives::agree(Operation& operation) {
  operation.announcements.wait();
  for (size_t i = 0; i < linked_.size(); ++i) {
    if (same_operation(operation.announcement, operation.peers[i])) continue;
    const std::string mine = fmt::format("{} calls {}", topology_.name_of_rank(rank()),
                                         describe(operation.announcement));
    const std::string theirs = fmt::format("{} calls {}", topology_.name_of_rank(linked_[i]),
                                           describe(operation.peers[i]));
    const bool first = rank() < linked_[i];
    fail<CommError>(
        "ranks diverged: {}, but {}; every rank must make the same calls in the same order",
        first ? mine : theirs, first ? theirs : mine);
  }
}

// The messages of a chunk are on their way while the ranks of each host copy the previous one.
void Collectives::all_gather(Operation& operation) {
  const CollectiveCall& call = operation.call;
  const int64_t part = call.in.numel;
  const int64_t chunk = std::max<int64_t>(1, most_numel(call.in.dtype) / options_.world_size);
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
      messages.send(topology_.relay(host, rank()), tag(Phase::gather), bytes_of(own));
    });
    if (operation.inputs.empty()) copy(own, row(at, rank()));
    return messages;
  };
  // What this rank copies to its output once the chunk's messages are there.
  const auto source = [&](int64_t at, int owner) {
    if (owner == rank()) return call.in.slice(at, numel_of(at));
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

void Collectives::all_to_all(Operation& operation) {
  const CollectiveCall& call = operation.call;
  const Slices slices(call, options_.world_size);
  int most_local = 1;
  for (int host = 0; host < topology_.hosts(); ++host) {
    most_local = std::max(most_local, static_cast<int>(topology_.ranks_of(host).size()));
  }
  const int64_t most = most_numel(call.in.dtype) / options_.world_size / most_local;
  const int64_t chunk = std::clamp<int64_t>(most, 1, std::max<int64_t>(1, slices.largest()));
  agree(operation);
  for (int64_t at = 0, row = slices.largest(); at < row; at += chunk) {
    exchange(operation, slices, {at, chunk, chunk * most_local});
  }
}

// The slices of a host's ranks for a rank elsewhere cross as one message, from the window.
void Collectives::exchange(Operation& operation, const Slices& slices, const ChunkOfSlices& chunk) {
  const CollectiveCall& call = operation.call;
  const auto numel = [&](int source, int owner) {
    return std::clamp<int64_t>(slices.between(source, owner).numel - chunk.at, 0, chunk.numel);
  };
  const auto given = [&](int owner) {
    const int64_t count = numel(rank(), owner);
    return call.in.slice(count == 0 ? 0 : slices.between(rank(), owner).begin_in + chunk.at, count);
  };
  const auto taken = [&](int source) {
    const int64_t count = numel(source, rank());
    return call.out.slice(count == 0 ? 0 : slices.between(source, rank()).begin_out + chunk.at,
                          count);
  };
  // The elements that the first `count` ranks of a host send to `owner`.
  const auto sent_by = [&](const std::vector<int>& ranks, size_t count, int owner) {
    int64_t sum = 0;
    for (size_t i = 0; i < count; ++i) sum += numel(ranks[i], owner);
    return sum;
  };
  const std::vector<int>& here = local_ranks();
  const auto place = [&](int owner) {  // of all that this host sends to `owner`
    const int64_t most = chunk.numel * std::ssize(here);
    return results(0, most * options_.world_size, call.in.dtype).slice(owner * most, most);
  };
  const auto copy_taken = [&](TensorView message, const std::vector<int>& sources) {
    for (size_t i = 0; i < sources.size(); ++i) {
      const TensorView to = taken(sources[i]);
      copy(message.slice(sent_by(sources, i, rank()), to.numel), to);
    }
  };
  ++round_;
  Messages messages = operation.messages(*this);
  for_other_hosts([&](int host) {
    const std::vector<int>& sources = topology_.ranks_of(host);
    const TensorView message = received(0, host, chunk.message, call.in.dtype);
    messages.receive(topology_.relay(host, rank()), tag(Phase::scatter),
                     bytes_of(message.slice(0, sent_by(sources, sources.size(), rank()))));
  });
  if (chunk.at > 0 && !alone()) local_.control().advance();  // all have read the last chunk
  const auto own = static_cast<size_t>(topology_.local_rank(rank()));
  for (int owner = 0; owner < options_.world_size && !alone(); ++owner) {
    const TensorView from = given(owner);
    copy(from, place(owner).slice(sent_by(here, own, owner), from.numel));
  }
  if (!alone()) local_.control().advance();
  for_owners([&](int owner) {
    const int64_t count = sent_by(here, here.size(), owner);
    messages.send(owner, tag(Phase::scatter),
                  bytes_of(alone() ? given(owner) : place(owner).slice(0, count)));
  });
  copy_taken(alone() ? given(rank()) : place(rank()), here);
  messages.wait();
  for_other_hosts([&](int host) {
    copy_taken(received(0, host, chunk.message, call.in.dtype), topology_.ranks_of(host));
  });
}

void Collectives::broadcast(Operation& operation) {
  const CollectiveCall& call = operation.call;
  const int64_t chunk = most_numel(call.out.dtype);
  const int root_host = topology_.host_of(call.root);
  const bool gives = rank() == call.root;
  agree(operation);
  for (int64_t at = 0; at < call.out.numel; at += chunk) {
    const TensorView out = call.out.slice(at, std::min(chunk, call.out.numel - at));
    const TensorView row = alone() ? out : results(0, out.numel, out.dtype);
    ++round_;
    if (at > 0 && !alone()) local_.control().advance();  // all have read the last chunk
    Messages messages = operation.messages(*this);
    if (gives) {
      for_other_hosts([&](int host) {
        messages.send(topology_.relay(host, rank()), tag(Phase::gather), bytes_of(out));
      });
      copy(out, row);
    } else if (host_ != root_host && topology_.relay(host_, call.root) == rank()) {
      messages.receive(call.root, tag(Phase::gather), bytes_of(row));
    }
    messages.wait();
    if (alone()) continue;
    local_.control().advance();
    if (!gives) copy(row, out);
  }
}

}  // namespace zerorun::hierarchical
