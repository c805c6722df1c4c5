#include "comm/shm/collectives.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/shm/reduce_kernels.h"
#include "core/check.h"
#include "core/format_bytes.h"
#include "os/host_limits.h"

namespace zerorun::shm {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kMaxBytes = size_t{1} << 62;

size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The elements that `rank` computes for all when an output is computed in parts: whole cache lines.
Exchange::Range part_of(int64_t numel, int rank, int world_size) {
  constexpr int64_t kLine = 64;
  const int64_t lines = (numel + kLine - 1) / kLine;
  const int64_t part = (lines + world_size - 1) / world_size * kLine;
  return {std::min(numel, rank * part), std::min(numel, (rank + 1) * part)};
}

void refuse_more_than_available(size_t nbytes) {
  const size_t available = host_limits().available_bytes();
  if (nbytes <= available) return;
  fail<DeviceError>("cannot allocate {} of shared memory: {} is available on this host",
                    format_bytes(nbytes), format_bytes(available));
}

inline void reduce_chunks(const CollectiveCall& call, Exchange& exchange) {
  while (exchange.next()) {
    const Exchange::Chunk& chunk = exchange.chunk();
    reduce({chunk.sources, call.in.dtype, call.reduce, call.output},
           call.out.slice(chunk.begin, chunk.numel));
  }
}

bool is_one_sided(const CollectiveCall& call) {
  return call.op == Collective::all_gather && call.sync == Sync::one_sided;
}

}  // namespace

Collectives::Collectives(const GroupOptions& options)
    : local_(options.store->local_segments()),
      control_(options, local_.get()),
      blocks_(std::make_shared<Blocks>(options.rank)) {}

void Collectives::run(const CollectiveCall& call) {
  if (is_one_sided(call)) return gather_one_sided(call);
  try {
    Exchange exchange(control_, *blocks_, call);
    switch (call.op) {
      case Collective::all_reduce:
        return all_reduce(call, exchange);
      case Collective::reduce_scatter:
        reduce_chunks(call, exchange);
        break;
      case Collective::all_gather:
        if (exchange.one_output()) return gather_into_one(call, exchange);
        while (exchange.next()) copy_gathered(call, exchange.chunk());
        break;
      case Collective::all_to_all:
        while (exchange.next()) {
          call.cuts ? copy_slices(call, exchange.chunk()) : copy_rows(call, exchange.chunk());
        }
        break;
      case Collective::broadcast:
        if (exchange.one_output()) return;
        while (exchange.next()) {
          const TensorView to = call.out.slice(exchange.chunk().begin, exchange.chunk().numel);
          const std::byte* from = exchange.chunk().sources.front();
          if (control_.rank() != call.root) copy_bytes(to.data, from, to.nbytes());
        }
        break;
      case Collective::barrier:
        break;
    }
    if (exchange.reads_inputs()) control_.advance();
  } catch (const std::exception& error) {
    control_.fail(error.what());  // peers must not wait; an earlier failure stays the error
  }
}

void Collectives::all_reduce(const CollectiveCall& call, Exchange& exchange) {
  const int world_size = control_.world_size();
  // Each rank computes a part for all where outputs can be shared or read: 1/world_size of the
  // reading. It also keeps peers from overwriting what others still need when in place.
  const bool one_output = exchange.one_output();
  const bool by_parts = one_output || exchange.all([](const Announcement& peer) {
    return peer.direct && peer.out.shared() && peer.output == Output::overwrite;
  });
  if (!by_parts &&
      !exchange.all([](const Announcement& peer) { return !(peer.direct && peer.in_place); })) {
    exchange.stage_all();
  }
  if (by_parts) exchange.read_only(part_of(call.out.numel, control_.rank(), world_size));
  reduce_chunks(call, exchange);
  if (by_parts) control_.advance();
  if (by_parts && !one_output) {
    for (int rank = 0; rank < world_size; ++rank) {
      if (rank == control_.rank()) continue;
      const Exchange::Range part = part_of(call.out.numel, rank, world_size);
      const TensorView to = call.out.slice(part.begin, part.numel());
      const auto from = blocks_->address(exchange.peer(rank).out, call.out.nbytes(), rank);
      const std::byte* source = from.get() + (to.data - call.out.data);
      if (source != to.data) copy_bytes(to.data, source, to.nbytes());
    }
  }
  if (by_parts ? !one_output : exchange.reads_inputs()) control_.advance();
}

// All outputs are the same memory: each rank copies its own input there.
void Collectives::gather_into_one(const CollectiveCall& call, const Exchange& exchange) {
  const size_t nbytes = call.in.nbytes();
  std::byte* const own = call.out.data + static_cast<size_t>(control_.rank()) * nbytes;
  if (call.in.data != own) copy_bytes(own, call.in.data, nbytes);
  bool all_in_place = true;
  for (int rank = 0; rank < control_.world_size(); ++rank) {
    const Announcement& peer = exchange.peer(rank);
    const Location place{peer.out.block, peer.out.offset + static_cast<size_t>(rank) * nbytes};
    all_in_place &= peer.in == place;
  }
  if (!all_in_place) control_.advance();
}

void Collectives::copy_gathered(const CollectiveCall& call, const Exchange::Chunk& chunk) const {
  const size_t offset = static_cast<size_t>(chunk.begin) * size_of(call.in.dtype);
  const size_t chunk_bytes = static_cast<size_t>(chunk.numel) * size_of(call.in.dtype);
  for (int rank = 0; rank < control_.world_size(); ++rank) {
    const bool own = rank == control_.rank();
    const std::byte* from = own ? call.in.data + offset : chunk.sources[static_cast<size_t>(rank)];
    std::byte* to = call.out.data + static_cast<size_t>(rank) * call.in.nbytes() + offset;
    if (from != to) copy_bytes(to, from, chunk_bytes);
  }
}

void Collectives::copy_rows(const CollectiveCall& call, const Exchange::Chunk& chunk) const {
  const int64_t row = call.out.numel / control_.world_size();
  for (int rank = 0; rank < control_.world_size(); ++rank) {
    const TensorView to = call.out.slice(rank * row + chunk.begin, chunk.numel);
    copy_bytes(to.data, chunk.sources[static_cast<size_t>(rank)], to.nbytes());
  }
}

void Collectives::copy_slices(const CollectiveCall& call, const Exchange::Chunk& chunk) const {
  const int own = control_.rank();
  const Slices slices(call, control_.world_size());
  for (int rank = 0; rank < control_.world_size(); ++rank) {
    const auto [numel, begin_in, begin_out] = slices.between(rank, own);
    const int64_t begin = std::max(begin_in, chunk.begin);
    const int64_t end = std::min(begin_in + numel, chunk.begin + chunk.numel);
    if (begin >= end) continue;
    const TensorView to = call.out.slice(begin_out + begin - begin_in, end - begin);
    const size_t skipped = static_cast<size_t>(begin - chunk.begin) * size_of(call.in.dtype);
    copy_bytes(to.data, chunk.sources[static_cast<size_t>(rank)] + skipped, to.nbytes());
  }
}

bool Collectives::takes_turn(const CollectiveCall& call) const {
  if (!is_one_sided(call)) return true;
  ZR_CHECK(
      call.in.empty() || blocks_->locate(call.in.data, call.in.nbytes()).shared(),
      "all_gather '{}' of one-sided inputs: the input is not in memory that the ranks allocated "
      "together",
      call.label);
  return false;
}

void Collectives::gather_one_sided(const CollectiveCall& call) {
  control_.check();
  if (call.in.empty()) return;
  const size_t nbytes = call.in.nbytes();
  const Location own = blocks_->locate(call.in.data, nbytes);
  const bool per_host = blocks_->per_host(own);
  for (int rank = 0; rank < control_.world_size(); ++rank) {
    Location place = own;
    if (per_host) place.offset += static_cast<size_t>(rank - control_.rank()) * nbytes;
    const auto from = blocks_->address(place, nbytes, rank);
    std::byte* to = call.out.data + static_cast<size_t>(rank) * nbytes;
    if (from.get() != to) copy_bytes(to, from.get(), nbytes);
  }
}

std::optional<Buffer> Collectives::make_buffer(size_t nbytes, Sharing sharing) {
  try {
    Block block = share_block(nbytes, sharing);
    if (sharing == Sharing::per_rank) reserve_pages(block.part(control_.rank()), nbytes);
    control_.advance();
    if (control_.rank() == 0) block.segment->close_file();  // all have it
    return blocks_->add(std::move(block));
  } catch (const DeviceError& error) {
    control_.abort(error.what());
    throw;
  } catch (const std::exception& error) {
    control_.fail(error.what());
  }
}

// Rank 0 makes the memory of all ranks, the others map it.
Block Collectives::share_block(size_t nbytes, Sharing sharing) {
  const int world_size = control_.world_size();
  const size_t stride =
      round_up(std::max<size_t>(nbytes, 1), nbytes < kHugePage ? kPage : kHugePage);
  if (nbytes > kMaxBytes / static_cast<size_t>(world_size)) {
    fail<DeviceError>("cannot allocate {} bytes for each of {} ranks", nbytes, world_size);
  }
  control_.check();  // as in Exchange
  Block block;
  block.id = next_block_++;
  block.nbytes = nbytes;
  block.stride = sharing == Sharing::per_host ? 0 : stride;
  if (control_.rank() == 0) {
    const size_t total =
        stride * static_cast<size_t>(sharing == Sharing::per_host ? 1 : world_size);
    // Of the others, whoever allocates them knows what is free by the time that they are written.
    if (sharing == Sharing::per_rank) refuse_more_than_available(total);
    block.segment = Segment::create(total);
    if (local_) local_->add(block.segment);
    std::memcpy(control_.outbox(), &block.segment->ticket(), sizeof(SegmentTicket));
  }
  Announcement mine;
  mine.step = Step::allocate;
  mine.numel = static_cast<int64_t>(nbytes);
  mine.sharing = sharing;
  control_.announce(mine, "");
  control_.advance();
  control_.check_agreement();
  if (control_.rank() != 0) {
    SegmentTicket ticket;
    std::memcpy(&ticket, control_.inbox(0), sizeof(ticket));
    block.segment = local_ ? local_->find(ticket) : Segment::open(ticket);
  }
  return block;
}

}  // namespace zerorun::shm
