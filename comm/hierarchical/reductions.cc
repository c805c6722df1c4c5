// The collectives that add.
#include <algorithm>
#include <array>
#include <vector>

#include "comm/hierarchical/operation.h"
#include "comm/shm/reduce_kernels.h"

namespace zerorun::hierarchical {

namespace {

// Of a message: while one is added, the next one is on its way.
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

// As they are where no host adds any, else in what they are added in.
DType Collectives::wire_dtype(DType in) const { return alone_everywhere_ ? in : widest(in); }

TensorView Collectives::received(int host, int64_t numel, DType dtype) {
  const size_t nbytes = static_cast<size_t>(numel) * size_of(dtype);
  const size_t needed = nbytes * static_cast<size_t>(topology_.hosts());
  if (received_.size() < needed) received_.resize(needed);
  return {received_.data() + static_cast<size_t>(host) * nbytes, numel, dtype};
}

TensorView Collectives::sum_within_host(const CollectiveCall& call, TensorView in, TensorView out) {
  if (alone() && in.dtype == out.dtype) return in;
  if (alone()) {
    const std::array<const std::byte*, 1> sources = {in.data};
    reduce({sources, in.dtype, call.reduce, Output::overwrite}, out);
    return out;
  }
  CollectiveCall within;
  within.op = Collective::all_reduce;
  within.in = in;
  within.out = out;
  within.reduce = call.reduce;
  within.label = call.label;
  local_.run(within);
  return out;
}

void Collectives::all_reduce(Operation& operation) {
  const CollectiveCall& call = operation.call;
  const DType wire = wire_dtype(call.in.dtype);
  const bool accumulates = call.output == Output::accumulate;
  const DType result_dtype = accumulates ? widest(call.in.dtype) : call.out.dtype;
  const bool direct = alone() && !accumulates;
  const size_t widest_nbytes = std::max(size_of(wire), size_of(result_dtype));
  const bool in_window = !alone_everywhere_ || accumulates;
  const auto chunk =
      static_cast<int64_t>((in_window ? kWindowBytes : kDirectBytes) / widest_nbytes);
  for (int64_t at = 0; at < call.in.numel || at == 0; at += chunk) {
    const int64_t numel = std::min(chunk, call.in.numel - at);
    const TensorView out = call.out.slice(at, numel);
    const TensorView result = direct ? out : results(numel, result_dtype);
    const TensorView partial =
        sum_within_host(call, call.in.slice(at, numel), partials(numel, wire));
    if (at == 0) settle(operation);
    reduce_across(operation, partial, result);
    if (direct) continue;
    local_.control().advance();
    if (accumulates) {
      const std::array<const std::byte*, 1> sources = {result.data};
      reduce({sources, result_dtype, call.reduce, call.output}, out);
    } else {
      copy(result, out);
    }
  }
}

// Every owner adds the hosts' sums of its slice, and sends the result to all hosts.
void Collectives::reduce_across(Operation& operation, TensorView partial, TensorView result) {
  ++round_;
  const DType wire = partial.dtype;
  const auto slice = [&](TensorView whole, int owner) {
    return slice_of(whole, owner, options_.world_size);
  };
  const TensorView own = slice(partial, rank_);
  const int64_t own_pieces = pieces_of(own.numel, wire);
  const int64_t most_pieces = pieces_of(slice(partial, 0).numel, wire);
  Messages arriving = operation.messages(*this);
  Messages leaving = operation.messages(*this);
  Messages finished = operation.messages(*this);
  for (int64_t piece = 0; piece < own_pieces; ++piece) {
    for_other_hosts([&](int host) {
      const TensorView to = piece_of(received(host, own.numel, wire), piece, wire);
      arriving.receive(topology_.relay(host, rank_), tag(Phase::scatter, piece), bytes_of(to));
    });
  }
  for (int64_t piece = 0; piece < most_pieces; ++piece) {
    for_owners([&](int owner) {
      const TensorView from = piece_of(slice(partial, owner), piece, wire);
      leaving.send(owner, tag(Phase::scatter, piece), bytes_of(from));
      const TensorView to = piece_of(slice(result, owner), piece, wire);
      finished.receive(owner, tag(Phase::gather, piece), bytes_of(to));
    });
  }
  std::vector<const std::byte*> sources(static_cast<size_t>(topology_.hosts()));
  for (int64_t piece = 0; piece < own_pieces; ++piece) {
    arriving.wait(sources.size() - 1);
    for_other_hosts([&](int host) {
      sources[static_cast<size_t>(host)] =
          piece_of(received(host, own.numel, wire), piece, wire).data;
    });
    sources[static_cast<size_t>(host_)] = piece_of(own, piece, wire).data;
    const TensorView sum = piece_of(slice(result, rank_), piece, wire);
    reduce({sources, wire, operation.call.reduce, Output::overwrite}, sum);
    for_other_hosts([&](int host) {
      leaving.send(topology_.relay(host, rank_), tag(Phase::gather, piece), bytes_of(sum));
    });
  }
  finished.wait();
  leaving.wait();
}

void Collectives::reduce_scatter(Operation& operation) {
  const CollectiveCall& call = operation.call;
  const DType wire = wire_dtype(call.in.dtype);
  const int64_t row = call.out.numel;
  const bool in_place = alone() && wire == call.in.dtype;
  const auto most =
      static_cast<int64_t>((alone_everywhere_ ? kDirectBytes : kWindowBytes) / size_of(wire));
  const int64_t chunk = std::max<int64_t>(1, most / options_.world_size);
  std::vector<const std::byte*> sources(static_cast<size_t>(topology_.hosts()));
  for (int64_t at = 0; at < row || at == 0; at += chunk) {
    const int64_t numel = std::min(chunk, row - at);
    // Rows of the sum, a distance of `stride` apart.
    TensorView rows = call.in.slice(at, 0);
    int64_t stride = row;
    if (!in_place) {
      rows = partials(numel * options_.world_size, wire);
      stride = numel;
      if (numel == row) {
        sum_within_host(call, call.in, rows);
      } else {
        for (int owner = 0; owner < options_.world_size; ++owner) {
          sum_within_host(call, call.in.slice(owner * row + at, numel),
                          rows.slice(owner * stride, numel));
        }
      }
    }
    if (at == 0) settle(operation);
    ++round_;
    Messages arriving = operation.messages(*this);
    Messages leaving = operation.messages(*this);
    for_other_hosts([&](int host) {
      arriving.receive(topology_.relay(host, rank_), tag(Phase::scatter),
                       bytes_of(received(host, numel, wire)));
    });
    for_owners([&](int owner) {
      leaving.send(owner, tag(Phase::scatter), bytes_of(rows.slice(owner * stride, numel)));
    });
    arriving.wait();
    for_other_hosts(
        [&](int host) { sources[static_cast<size_t>(host)] = received(host, numel, wire).data; });
    sources[static_cast<size_t>(host_)] = rows.slice(rank_ * stride, numel).data;
    reduce({sources, wire, call.reduce, call.output}, call.out.slice(at, numel));
    leaving.wait();
  }
}

}  // namespace zerorun::hierarchical
