#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "train/model/kernels.h"
#include "zerorun/device.h"

namespace zerorun::train {

// Sequences of equal length, one after the other, with the target (the next token) of each token.
struct Batch {
  std::span<const int32_t> tokens;
  std::span<const int32_t> targets;
};

// The tokens on which the model works, in device memory. A batch is uploaded in one transfer, for
// which the caller does not wait.
class TokenBatch {
 public:
  TokenBatch(Device& device, int64_t max_tokens);

  // Also sets targets and order if `batch` has targets.
  void upload(const Batch& batch);

  const int32_t* tokens() const { return tokens_; }
  const int32_t* targets() const { return targets_; }
  const TokenOrder& order() const { return order_; }

 private:
  // Pinned memory that a transfer reads, and the event after which it may be reused.
  struct Staging {
    Buffer memory;
    Event read;
  };

  Device& device_;
  Buffer buffer_;
  std::vector<int32_t> values_;
  std::array<Staging, 2> staging_;
  size_t next_ = 0;
  const int32_t* tokens_ = nullptr;
  const int32_t* targets_ = nullptr;
  TokenOrder order_;
};

}  // namespace zerorun::train
