#include <algorithm>

#include "checkpoint/format/shard_file.h"
#include "checkpoint/saving/save.h"
#include "zerorun/checkpoint.h"

namespace zerorun {

std::span<std::byte> SnapshotQueue::reserve(size_t wanted, uint64_t place) {
  std::unique_lock lock(mutex_);
  std::span<std::byte> found = room(wanted, place);
  if (found.empty()) start_draining();
  while (found.empty() && !closed_) {
    changed_.wait(lock);
    found = room(wanted, place);
  }
  return closed_ ? std::span<std::byte>() : found;
}

std::span<std::byte> SnapshotQueue::room(size_t wanted, uint64_t place) {
  if (pieces_.empty()) begin_ = end_ = 0;
  const uint64_t begin = end_ + (place - end_) % kAlignment;
  const uint64_t lap = (begin / memory_.size() + 1) * memory_.size();
  const uint64_t limit = std::min<uint64_t>(lap, begin_ + memory_.size());
  uint64_t end = begin + wanted;
  if (end > limit) end = limit / kAlignment * kAlignment;
  if (end <= begin) return {};
  reserved_ = begin;
  return memory_.subspan(begin % memory_.size(), end - begin);
}

void SnapshotQueue::push(const Piece& piece) {
  const std::scoped_lock lock(mutex_);
  end_ = reserved_ + piece.bytes.size();
  pieces_.push_back({piece, end_});
  if (drains_) changed_.notify_all();
}

void SnapshotQueue::finish() {
  const std::scoped_lock lock(mutex_);
  finished_ = true;
  start_draining();
}

std::vector<SnapshotQueue::Piece> SnapshotQueue::take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return closed_ || finished_ || (drains_ && !pieces_.empty()); });
  std::vector<Piece> batch;
  size_t nbytes = 0;
  for (taken_ = 0; !closed_ && taken_ < pieces_.size() && nbytes < kBatchNbytes; ++taken_) {
    batch.push_back(pieces_[taken_].piece);
    nbytes += batch.back().bytes.size();
  }
  return batch;
}

void SnapshotQueue::release() {
  const std::scoped_lock lock(mutex_);
  if (taken_ == 0) return;
  begin_ = pieces_[taken_ - 1].end;
  pieces_.erase(pieces_.begin(), pieces_.begin() + static_cast<std::ptrdiff_t>(taken_));
  taken_ = 0;
  changed_.notify_all();
}

void SnapshotQueue::start_draining() {
  drains_ = true;
  changed_.notify_all();
}

void SnapshotQueue::close() {
  const std::scoped_lock lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

namespace {

// Bytes of this rank's part that lie on its device, at most, as pieces of a queue.
uint64_t resident_nbytes(EngineStates& engine) {
  uint64_t nbytes = 0;
  const auto specs = engine.parameters();
  engine.visit_states(StateAccess::shape, [&](const StateInterval& interval) {
    const bool trainable = specs[static_cast<size_t>(interval.parameter)].trainable;
    if (!interval.owned || (trainable ? interval.on_host : interval.param_on_host)) return;
    const auto add = [&](const TensorView& view) {
      nbytes += SnapshotQueue::memory_for(view.nbytes());
    };
    if (!trainable) return add(interval.param);
    add(interval.master);
    for (const TensorView& state : interval.states) add(state);
  });
  return nbytes;
}

// All pieces of this rank's part side by side: in the order of the file without gaps, if that is
// the order in which they come.
uint64_t whole_nbytes(EngineStates& engine) {
  const ShardPlan plan(engine);
  const std::vector<HashedTensor>& tensors = plan.tensors();
  if (tensors.empty()) return 0;
  if (plan.is_read_in_order()) return tensors.back().end() - tensors.front().begin;
  uint64_t nbytes = 0;
  for (const HashedTensor& tensor : tensors) nbytes += SnapshotQueue::memory_for(tensor.nbytes);
  return nbytes;
}

}  // namespace

uint64_t snapshot_nbytes(EngineStates& engine, uint64_t asked) {
  const uint64_t whole = whole_nbytes(engine);
  const uint64_t wanted = asked > 0 ? asked : std::max(resident_nbytes(engine), kMinSnapshotNbytes);
  const uint64_t enough = std::min(whole, wanted);
  constexpr uint64_t kUnit = SnapshotQueue::kAlignment;
  return std::max((enough + kUnit - 1) / kUnit * kUnit, kUnit);
}

}  // namespace zerorun
