#include "train/model/token_batch.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/check.h"

namespace zerorun::train {

namespace {

void append(std::vector<int32_t>& to, std::span<const int32_t> values) {
  to.insert(to.end(), values.begin(), values.end());
}

// Appends the rows sorted by token, then the index where the rows of each token begin and the end
// of the last. Returns the number of distinct tokens.
int64_t append_order(std::vector<int32_t>& to, std::span<const int32_t> tokens) {
  std::vector<int32_t> rows(tokens.size());
  std::iota(rows.begin(), rows.end(), 0);
  const auto token_of = [&](size_t i) { return tokens[static_cast<size_t>(rows[i])]; };
  std::stable_sort(rows.begin(), rows.end(), [&](int32_t a, int32_t b) {
    return tokens[static_cast<size_t>(a)] < tokens[static_cast<size_t>(b)];
  });
  append(to, rows);
  int64_t distinct = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i > 0 && token_of(i) == token_of(i - 1)) continue;
    to.push_back(static_cast<int32_t>(i));
    ++distinct;
  }
  to.push_back(static_cast<int32_t>(rows.size()));
  return distinct;
}

}  // namespace

TokenBatch::TokenBatch(Device& device, int64_t max_tokens)
    : device_(device),
      buffer_(device.allocate(static_cast<size_t>(4 * max_tokens + 1) * sizeof(int32_t),
                              MemoryCategory::activations)) {
  for (Staging& staging : staging_) staging.memory = device.allocate_pinned(buffer_.nbytes());
}

void TokenBatch::upload(const Batch& batch) {
  values_.clear();
  append(values_, batch.tokens);
  append(values_, batch.targets);
  const int64_t distinct = batch.targets.empty() ? 0 : append_order(values_, batch.tokens);
  const size_t nbytes = values_.size() * sizeof(int32_t);
  ZR_CHECK(nbytes <= buffer_.nbytes(), "{} tokens in a buffer of {} bytes", batch.tokens.size(),
           buffer_.nbytes());
  Staging& staging = staging_[next_];
  next_ = (next_ + 1) % staging_.size();
  if (!staging.read.ready()) staging.read.synchronize();
  std::memcpy(staging.memory.data(), values_.data(), nbytes);
  Stream& stream = device_.inline_stream();
  device_.upload(stream, staging.memory.data(),
                 view_of(buffer_, DType::uint8, static_cast<int64_t>(nbytes)));
  staging.read = stream.record();

  const size_t count = batch.tokens.size();
  tokens_ = reinterpret_cast<const int32_t*>(buffer_.data());
  targets_ = tokens_ + count;
  order_ = {targets_ + count, targets_ + 2 * count, distinct};
}

}  // namespace zerorun::train
