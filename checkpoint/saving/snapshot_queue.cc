#include "checkpoint/saving/snapshot_queue.h"

#include <algorithm>

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

}  // namespace zerorun
