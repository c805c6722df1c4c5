#include "comm/nccl/pending_calls.h"

#include <fmt/format.h>

#include <utility>

namespace zerorun {

std::string CallName::text() const {
  if (!op) return label;
  std::string text = fmt::format("{} '{}' of {} bytes", name_of(*op), label, bytes);
  if (more > 0) text += fmt::format(" and {} more", more);
  return text;
}

void PendingCalls::begin(PendingCall call) {
  calling_ = std::move(call);
  calling_->begun = ++begun_;
  notice_ = {};
}

void PendingCalls::enqueued(Event done) {
  enqueued_.push_back(std::move(*calling_));
  enqueued_.back().done = std::move(done);
  calling_.reset();
}

void PendingCalls::end() {
  if (calling_) last_ = std::move(calling_->name);
  calling_.reset();
}

void PendingCalls::clear() {
  if (!enqueued_.empty()) last_ = std::move(enqueued_.back().name);
  enqueued_.clear();
  end();
}

void PendingCalls::forget_first(int64_t begun) {
  if (enqueued_.empty() || enqueued_.front().begun != begun) return;
  last_ = std::move(enqueued_.front().name);
  enqueued_.pop_front();
}

std::optional<std::string> PendingCalls::due_notice(std::chrono::steady_clock::duration waited) {
  if (!notice_.due(waited)) return std::nullopt;
  return fmt::format("told/{}/{}", begun_, notice_.next().count());
}

std::string PendingCalls::last() const {
  if (calling_) return calling_->name.text();
  return (enqueued_.empty() ? last_ : enqueued_.back().name).text();
}

}  // namespace zerorun
