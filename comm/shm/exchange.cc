#include "comm/shm/exchange.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "comm/shm/reduce_kernels.h"
#include "core/check.h"

namespace zerorun::shm {

namespace {

// Up to here a copy costs less than the step that direct reading needs at its end.
constexpr size_t kDirectBytes = size_t{16} << 10;

bool has_rows(const CollectiveCall& call) {
  return !call.cuts && (call.op == Collective::reduce_scatter || call.op == Collective::all_to_all);
}

Announcement announcement_of(const CollectiveCall& call, const Blocks& blocks) {
  Announcement mine = shm::announcement_of(call);
  mine.in = blocks.locate(call.in.data, call.in.nbytes());
  mine.out = blocks.locate(call.out.data, call.out.nbytes());
  mine.direct = mine.in.shared() && call.in.nbytes() > kDirectBytes;
  mine.in_place = call.in.data == call.out.data;
  return mine;
}

}  // namespace

Buffer Blocks::add(Block block) {
  std::byte* data = block.part(rank_);
  const size_t nbytes = block.nbytes;
  {
    const std::lock_guard lock(mutex_);
    by_address_.emplace(data, std::move(block));
  }
  return {data, nbytes, [blocks = shared_from_this(), data] { blocks->remove(data); }};
}

void Blocks::remove(const std::byte* data) {
  decltype(by_address_)::node_type block;  // unmapped after the lock is released
  const std::lock_guard lock(mutex_);
  block = by_address_.extract(data);
}

Location Blocks::locate(const std::byte* data, size_t nbytes) const {
  const std::lock_guard lock(mutex_);
  const auto above = by_address_.upper_bound(data);
  if (above == by_address_.begin()) return {};
  const auto& [part, block] = *std::prev(above);
  const auto offset = static_cast<size_t>(data - part);
  if (offset > block.nbytes || nbytes > block.nbytes - offset) return {};
  return {block.id, offset};
}

std::shared_ptr<std::byte> Blocks::address(const Location& location, size_t nbytes,
                                           int rank) const {
  const std::lock_guard lock(mutex_);
  const Block* block = find(location.block);
  if (block == nullptr) {
    fail<CommError>(
        "rank {} works on shared memory block {}, which rank {} has freed: ranks must free shared "
        "memory after the last collective on it",
        rank, location.block, rank_);
  }
  if (location.offset > block->nbytes || nbytes > block->nbytes - location.offset) {
    fail<CommError>("rank {} names bytes {} to {} of shared memory block {}, which has {}", rank,
                    location.offset, location.offset + nbytes, location.block, block->nbytes);
  }
  return {block->segment, block->part(rank) + location.offset};
}

bool Blocks::per_host(const Location& location) const {
  const std::lock_guard lock(mutex_);
  const Block* block = find(location.block);
  return block != nullptr && block->stride == 0;
}

const Block* Blocks::find(int64_t id) const {
  const auto found = std::find_if(by_address_.begin(), by_address_.end(),
                                  [id](const auto& entry) { return entry.second.id == id; });
  return found == by_address_.end() ? nullptr : &found->second;
}

Exchange::Exchange(Control& control, const Blocks& blocks, const CollectiveCall& call)
    : control_(control),
      blocks_(blocks),
      call_(call),
      rows_(has_rows(call) ? control.world_size() : 1),
      row_numel_(call.cuts ? largest_part(call.cuts->before) : call.in.numel / rows_),
      stage_numel_(static_cast<int64_t>(kStageBytes / size_of(call.in.dtype)) / rows_),
      part_{0, row_numel_} {
  // After a failed step, what this rank said for the last one must stay readable to slower peers.
  control.check();
  const Announcement mine = announcement_of(call, blocks);
  if (gives(control.rank()) && !mine.direct) stage(0, std::min(row_numel_, stage_numel_));
  control.announce(mine, call.label);
  control.advance();
  control.check_agreement();
  for (int rank = 0; rank < control.world_size(); ++rank) {
    peers_.push_back(control.announcement(rank));
  }
}

bool Exchange::all(const std::function<bool(const Announcement&)>& condition) const {
  return std::all_of(peers_.begin(), peers_.end(), condition);
}

bool Exchange::one_output() const {
  const Location& first = peers_.front().out;
  return first.shared() && blocks_.per_host(first) &&
         all([&](const Announcement& peer) { return peer.out == first; });
}

bool Exchange::reads_inputs() const {
  for (int rank = 0; rank < control_.world_size(); ++rank) {
    if (gives(rank) && !staged(rank)) return true;
  }
  return false;
}

void Exchange::stage_all() { stage_all_ = true; }

void Exchange::find_inputs() {
  bool any_staged = false;
  for (int rank = 0; rank < control_.world_size(); ++rank) {
    const bool reads = gives(rank) && !staged(rank);
    const auto nbytes = static_cast<size_t>(numel_of(rank)) * size_of(call_.in.dtype);
    direct_.push_back(reads ? blocks_.address(peer(rank).in, nbytes, rank) : nullptr);
    any_staged |= gives(rank) && staged(rank) && numel_of(rank) > rows_ * stage_numel_;
  }
  step_ = any_staged ? stage_numel_ : row_numel_;
}

bool Exchange::next() {
  if (direct_.empty()) find_inputs();
  if (next_ >= row_numel_) return false;
  const int64_t begin = next_;
  const int64_t numel = std::min(step_, row_numel_ - begin);
  next_ += numel;
  if (begin > 0 || stage_all_) {
    if (gives(control_.rank()) && staged(control_.rank())) stage(begin, numel);
    control_.advance();
  }
  chunk_.begin = std::clamp(part_.begin, begin, next_);
  chunk_.numel = std::clamp(part_.end, begin, next_) - chunk_.begin;
  const int64_t row = rows_ == 1 ? 0 : control_.rank();
  const size_t element = size_of(call_.in.dtype);
  sources_.clear();
  for (int rank = 0; rank < control_.world_size(); ++rank) {
    if (const auto& data = direct_[static_cast<size_t>(rank)]) {
      const int64_t at = row * row_numel_ + chunk_.begin;
      sources_.push_back(data.get() + static_cast<size_t>(at) * element);
    } else if (gives(rank)) {
      const int64_t at = row * numel + chunk_.begin - begin;
      sources_.push_back(control_.inbox(rank) + static_cast<size_t>(at) * element);
    }
  }
  chunk_.sources = sources_;
  return true;
}

bool Exchange::gives(int rank) const {
  return call_.op != Collective::broadcast || rank == call_.root;
}

int64_t Exchange::numel_of(int rank) const {
  if (!call_.cuts) return call_.in.numel;
  const std::vector<int64_t>& cuts = call_.cuts->before;
  return cuts[static_cast<size_t>(rank) + 1] - cuts[static_cast<size_t>(rank)];
}

bool Exchange::staged(int rank) const { return stage_all_ || !peer(rank).direct; }

void Exchange::stage(int64_t begin, int64_t numel) {
  std::byte* to = control_.outbox();
  for (int64_t row = 0; row < rows_; ++row) {
    const int64_t at = std::min(call_.in.numel, row * row_numel_ + begin);
    const TensorView part = call_.in.slice(at, std::min(numel, call_.in.numel - at));
    copy_bytes(to, part.data, part.nbytes());
    to += part.nbytes();
  }
}

}  // namespace zerorun::shm
