#include "checkpoint/saving/snapshot_queue.h"

#include <algorithm>

namespace zerorun {

std::span<std::byte> SnapshotQueue::reserve(size_t wanted) {
  std::unique_lock lock(mutex_);
  if (end_ - begin_ == memory_.size()) start_draining();
  changed_.wait(lock, [&] { return closed_ || end_ - begin_ < memory_.size(); });
  if (closed_) return {};
  const size_t place = end_ % memory_.size();
  const size_t in_a_row = std::min(memory_.size() - place, memory_.size() - (end_ - begin_));
  return memory_.subspan(place, std::min(wanted, in_a_row));
}

void SnapshotQueue::push(const Piece& piece) {
  const std::scoped_lock lock(mutex_);
  pieces_.push_back(piece);
  end_ += memory_for(piece.bytes.size());
  changed_.notify_all();
}

void SnapshotQueue::finish() {
  const std::scoped_lock lock(mutex_);
  finished_ = true;
  start_draining();
}

std::optional<SnapshotQueue::Piece> SnapshotQueue::front() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return closed_ || finished_ || (drains_ && !pieces_.empty()); });
  if (closed_ || pieces_.empty()) return std::nullopt;
  return pieces_.front();
}

void SnapshotQueue::pop() {
  const std::scoped_lock lock(mutex_);
  begin_ += memory_for(pieces_.front().bytes.size());
  pieces_.pop_front();
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
