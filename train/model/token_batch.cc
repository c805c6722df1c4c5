#include "train/model/token_batch.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/check.h"

namespace zerorun::train {

namespace {

// Writes the rows sorted by token, then the index where the rows of each token begin and the end of
// the last. Returns the number of distinct tokens.
int64_t write_order(std::span<const int32_t> tokens, int32_t* to) {
  const std::span rows(to, tokens.size());
  std::iota(rows.begin(), rows.end(), 0);
  const auto token_of = [&](int32_t row) { return tokens[static_cast<size_t>(row)]; };
  std::stable_sort(rows.begin(), rows.end(),
                   [&](int32_t a, int32_t b) { return token_of(a) < token_of(b); });
  int32_t* const begins = to + tokens.size();
  int64_t distinct = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i > 0 && token_of(rows[i]) == token_of(rows[i - 1])) continue;
    begins[distinct++] = static_cast<int32_t>(i);
  }
  begins[distinct] = static_cast<int32_t>(rows.size());
  return distinct;
}

// The host's cores have nothing to do beside the caller on which they could sort.
std::unique_ptr<CpuStream> make_sorter(Device& device) {
  return device.is_host() ? make_inline_stream() : make_worker_stream("zr-token-order");
}

int32_t* tokens_in(const Buffer& buffer) { return reinterpret_cast<int32_t*>(buffer.data()); }

}  // namespace

TokenBatch::TokenBatch(Device& device, int64_t max_tokens)
    : TokenBatch(device, max_tokens, make_sorter(device)) {}

TokenBatch::TokenBatch(Device& device, int64_t max_tokens, std::unique_ptr<CpuStream> sorter)
    : device_(device),
      buffer_(device.allocate(static_cast<size_t>(4 * max_tokens + 1) * sizeof(int32_t),
                              MemoryCategory::activations)),
      tokens_(tokens_in(buffer_)),
      sorter_(std::move(sorter)) {
  for (Staging& staging : staging_) staging.memory = device.allocate_pinned(buffer_.nbytes());
}

void TokenBatch::upload(const Batch& batch) {
  count_ = batch.tokens.size();
  ZR_CHECK((4 * count_ + 1) * sizeof(int32_t) <= buffer_.nbytes(),
           "{} tokens in a buffer of {} bytes", count_, buffer_.nbytes());
  staged_ = &staging_[next_];
  next_ = (next_ + 1) % staging_.size();
  for (const Event* event : {&staged_->sorted, &staged_->read}) {
    if (!event->ready()) event->synchronize();
  }
  int32_t* const host = tokens_in(staged_->memory);
  std::copy(batch.tokens.begin(), batch.tokens.end(), host);
  std::copy(batch.targets.begin(), batch.targets.end(), host + count_);
  transfer(0, count_ + batch.targets.size());
  if (batch.targets.empty()) return;
  sorter_->submit([host, count = count_, staged = staged_] {
    staged->distinct = write_order({host, count}, host + 2 * count);
  });
  staged_->sorted = sorter_->record();
}

void TokenBatch::transfer(size_t begin, size_t end) {
  Stream& stream = device_.inline_stream();
  device_.upload(
      stream, tokens_in(staged_->memory) + begin,
      view_of(buffer_, DType::uint8, static_cast<int64_t>((end - begin) * sizeof(int32_t)),
              begin * sizeof(int32_t)));
  staged_->read = stream.record();
}

TokenOrder TokenBatch::order() {
  staged_->sorted.synchronize();
  const int64_t distinct = staged_->distinct;
  transfer(2 * count_, 3 * count_ + static_cast<size_t>(distinct) + 1);
  return {tokens_ + 2 * count_, tokens_ + 3 * count_, distinct};
}

}  // namespace zerorun::train
