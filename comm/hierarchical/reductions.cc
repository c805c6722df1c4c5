// The collectives that add.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "comm/hierarchical/operation.h"
#include "comm/shm/reduce_kernels.h"

namespace zerorun::hierarchical {

namespace {

// The size of a message: while one is added, the next one is on its way.
constexpr int64_t kPieceBytes = int64_t{512} << 10;

// Whole cache lines: ranks of one host write neighbouring slices.
TensorView slice_of(TensorView whole, int rank, int world_size) {
  constexpr int64_t kLine = 64;
  const int64_t lines = (whole.numel + kLine - 1) / kLine;
  const int64_t part = (lines + world_size - 1) / world_size * kLine;
  const int64_t begin = std::min(whole.numel, rank * part);
  return whole.slice(begin, std::min(part, whole.numel - begin));
}

int64_t pieces_of(int64_t numel, DType wire) {
  const int64_t piece = kPieceBytes / static_cast<int64_t>(size_of(wire));
  return (numel + piece - 1) / piece;
}

TensorView piece_of(TensorView slice, int64_t number, DType wire) {
  const int64_t piece = kPieceBytes / static_cast<int64_t>(size_of(wire));
  const int64_t begin = std::min(slice.numel, number * piece);
  return slice.slice(begin, std::min(piece, slice.numel - begin));
}

DType widest(DType dtype) { return dtype == DType::int64 ? DType::int64 : DType::fp32; }

}  // namespace

bool Collectives::is_bound(DType in) const {
  return in == bound_ && (in == DType::bf16 || in == DType::fp16);
}

// As they are where no host adds any, else in what they are added in.
DType Collectives::wire_dtype(DType in) const {
  return alone_everywhere_ || is_bound(in) ? in : widest(in);
}

DType Collectives::result_dtype(const CollectiveCall& call) const {
  if (is_bound(call.in.dtype)) return call.in.dtype;
  return call.output == Output::accumulate ? widest(call.in.dtype) : call.out.dtype;
}

TensorView Collectives::received(int slot, int host, int64_t numel, DType dtype) {
  const size_t nbytes = static_cast<size_t>(numel) * size_of(dtype);
  const size_t needed = nbytes * static_cast<size_t>(topology_.hosts());
  std::vector<std::byte>& memory = received_[static_cast<size_t>(slot)];
  if (memory.size() < needed) memory.resize(needed);
  return {memory.data() + static_cast<size_t>(host) * nbytes, numel, dtype};
}

TensorView Collectives::sum_within_host(const Operation& operation, TensorView in, TensorView out) {
  const CollectiveCall& call = operation.call;
  if (alone() && in.dtype == out.dtype) return in;
  if (alone()) {
    const std::array<const std::byte*, 1> sources = {in.data};
    reduce({sources, in.dtype, call.reduce, Output::overwrite}, out);
    return out;
  }
  if (!operation.inputs.empty()) {  // each rank adds a slice for all
    const TensorView part = slice_of(out, topology_.local_rank(rank()), local_world_size());
    std::vector<const std::byte*> sources;
    for (const auto& input : operation.inputs) {
      const auto offset = static_cast<size_t>(part.data - out.data) / size_of(out.dtype);
      sources.push_back(input.get() + (in.data - call.in.data) + offset * size_of(in.dtype));
    }
    reduce({sources, in.dtype, call.reduce, Output::overwrite}, part);
    return out;
  }
  CollectiveCall within;
  within.op = Collective::all_reduce;
  within.in = in;
  within.out = out;
  within.reduce = call.reduce;
  within.label = call.label;
  within.number = operation.announcement.number;
  local_.run(within);
  return out;
}

void Collectives::finish_sums(const Operation& operation) {
  if (!operation.inputs.empty()) local_.control().advance();
}

// A chunk's sums of hosts are on their way while the ranks of each host add the next one's.
void Collectives::all_reduce(Operation& operation) {
  const CollectiveCall& call = operation.call;
  const DType wire = wire_dtype(call.in.dtype);
  const DType crossing_dtype = result_dtype(call);
  const bool as_it_is = is_output(call);
  const bool direct = (alone() && as_it_is) || !operation.outputs.empty();
  const size_t widest_nbytes = std::max(size_of(wire), size_of(crossing_dtype));
  const bool in_window = !alone_everywhere_ || !as_it_is;
  const auto chunk =
      static_cast<int64_t>((in_window ? kWindowBytes : kDirectBytes) / widest_nbytes);
  std::optional<Crossing> last;
  for (int64_t at = 0; at < call.in.numel || at == 0; at += chunk) {
    const int64_t numel = std::min(chunk, call.in.numel - at);
    const TensorView out = call.out.slice(at, numel);
    const int slot = static_cast<int>(at / chunk % kSlots);
    const TensorView result = direct ? out : results(slot, numel, crossing_dtype);
    const TensorView partial =
        sum_within_host(operation, call.in.slice(at, numel), partials(slot, numel, wire));
    finish_sums(operation);
    if (at == 0) agree(operation);
    Crossing crossing = start_crossing(operation, slot, partial, result);
    if (last) finish_chunk(operation, *last, call.out.slice(at - chunk, chunk));
    last.emplace(std::move(crossing));
    if (at + chunk >= call.in.numel) finish_chunk(operation, *last, out);
  }
  // Its owner may change an output once the others have read it.
  if (!operation.outputs.empty()) local_.control().advance();
}

// `out` has the result when this returns.
void Collectives::finish_chunk(const Operation& operation, Crossing& crossing, TensorView out) {
  const CollectiveCall& call = operation.call;
  finish_crossing(call, crossing);
  const TensorView& result = crossing.result;
  if (alone() && result.data == out.data) return;
  local_.control().advance();
  if (!operation.outputs.empty()) {
    collect_result(operation, out);
  } else if (call.output == Output::accumulate || result.dtype != out.dtype) {
    const std::array<const std::byte*, 1> sources = {result.data};
    reduce({sources, result.dtype, call.reduce, call.output}, out);
  } else {
    copy(result, out);
  }
}

void Collectives::collect_result(const Operation& operation, TensorView out) const {
  for (int owner = 0; owner < options_.world_size; ++owner) {
    const bool here = topology_.host_of(owner) == host_;
    const int holder = here ? owner : topology_.relay(host_, owner);
    if (holder == rank()) continue;
    const TensorView to = slice_of(out, owner, options_.world_size);
    const auto& output = operation.outputs[static_cast<size_t>(topology_.local_rank(holder))];
    const std::byte* from = output.get() + (to.data - operation.call.out.data);
    if (from != to.data) copy_bytes(to.data, from, to.nbytes());
  }
}

// Every owner adds the hosts' sums of its slice, and sends the result to all hosts.
Collectives::Crossing Collectives::start_crossing(Operation& operation, int slot,
                                                  TensorView partial, TensorView result) {
  ++round_;
  Crossing crossing{round_,
                    slot,
                    partial,
                    result,
                    operation.messages(*this),
                    operation.messages(*this),
                    operation.messages(*this)};
  const DType wire = partial.dtype;
  const TensorView own = slice_of(partial, rank(), options_.world_size);
  const int64_t most_pieces = pieces_of(slice_of(partial, 0, options_.world_size).numel, wire);
  for (int64_t piece = 0; piece < pieces_of(own.numel, wire); ++piece) {
    for_other_hosts([&](int host) {
      const TensorView to = piece_of(received(slot, host, own.numel, wire), piece, wire);
      crossing.arriving.receive(topology_.relay(host, rank()), tag(Phase::scatter, piece),
                                bytes_of(to));
    });
  }
  for (int64_t piece = 0; piece < most_pieces; ++piece) {
    for_owners([&](int owner) {
      const auto piece_of_owner = [&](TensorView whole) {
        return bytes_of(piece_of(slice_of(whole, owner, options_.world_size), piece, wire));
      };
      crossing.leaving.send(owner, tag(Phase::scatter, piece), piece_of_owner(partial));
      crossing.finished.receive(owner, tag(Phase::gather, piece), piece_of_owner(result));
    });
  }
  return crossing;
}

void Collectives::finish_crossing(const CollectiveCall& call, Crossing& crossing) {
  const DType wire = crossing.partial.dtype;
  const TensorView own = slice_of(crossing.partial, rank(), options_.world_size);
  const TensorView own_result = slice_of(crossing.result, rank(), options_.world_size);
  std::vector<const std::byte*> sources(static_cast<size_t>(topology_.hosts()));
  for (int64_t piece = 0; piece < pieces_of(own.numel, wire); ++piece) {
    crossing.arriving.wait(sources.size() - 1);
    for_other_hosts([&](int host) {
      sources[static_cast<size_t>(host)] =
          piece_of(received(crossing.slot, host, own.numel, wire), piece, wire).data;
    });
    sources[static_cast<size_t>(host_)] = piece_of(own, piece, wire).data;
    const TensorView sum = piece_of(own_result, piece, wire);
    reduce({sources, wire, call.reduce, Output::overwrite}, sum);
    for_other_hosts([&](int host) {
      crossing.leaving.send(topology_.relay(host, rank()),
                            tag_in(crossing.round, Phase::gather, piece), bytes_of(sum));
    });
  }
  crossing.finished.wait();
  crossing.leaving.wait();
}

Collectives::Scatter Collectives::start_scatter(Operation& operation, int slot, int64_t begin,
                                                int64_t numel, DType wire) {
  const CollectiveCall& call = operation.call;
  const int64_t row = call.out.numel;
  Scatter scatter{slot,
                  begin,
                  numel,
                  call.in.slice(begin, 0),
                  row,
                  operation.messages(*this),
                  operation.messages(*this)};
  if (!alone() || wire != call.in.dtype) {
    scatter.rows = partials(slot, numel * options_.world_size, wire);
    scatter.stride = numel;
    if (numel == row) {
      sum_within_host(operation, call.in, scatter.rows);
    } else {
      for (int owner = 0; owner < options_.world_size; ++owner) {
        sum_within_host(operation, call.in.slice(owner * row + begin, numel), scatter.of(owner));
      }
    }
  }
  finish_sums(operation);
  if (begin == 0) agree(operation);
  ++round_;
  for_other_hosts([&](int host) {
    scatter.arriving.receive(topology_.relay(host, rank()), tag(Phase::scatter),
                             bytes_of(received(slot, host, numel, wire)));
  });
  for_owners([&](int owner) {
    scatter.leaving.send(owner, tag(Phase::scatter), bytes_of(scatter.of(owner)));
  });
  return scatter;
}

void Collectives::finish_scatter(const CollectiveCall& call, Scatter& scatter) {
  const DType wire = scatter.rows.dtype;
  std::vector<const std::byte*> sources(static_cast<size_t>(topology_.hosts()));
  scatter.arriving.wait();
  for_other_hosts([&](int host) {
    sources[static_cast<size_t>(host)] = received(scatter.slot, host, scatter.numel, wire).data;
  });
  sources[static_cast<size_t>(host_)] = scatter.of(rank()).data;
  reduce({sources, wire, call.reduce, call.output}, call.out.slice(scatter.begin, scatter.numel));
  scatter.leaving.wait();
}

// A chunk's sums of hosts are on their way while the ranks of each host add the next one's.
void Collectives::reduce_scatter(Operation& operation) {
  const CollectiveCall& call = operation.call;
  const DType wire = wire_dtype(call.in.dtype);
  const int64_t row = call.out.numel;
  const int64_t chunk = std::max<int64_t>(1, most_numel(wire) / options_.world_size);
  std::optional<Scatter> last;
  for (int64_t at = 0; at < row || at == 0; at += chunk) {
    const int slot = static_cast<int>(at / chunk % kSlots);
    Scatter scatter = start_scatter(operation, slot, at, std::min(chunk, row - at), wire);
    if (last) finish_scatter(call, *last);
    last.emplace(std::move(scatter));
  }
  finish_scatter(call, *last);
}

}  // namespace zerorun::hierarchical
