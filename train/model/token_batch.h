#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "device/cpu/cpu_stream.h"
#include "train/model/kernels.h"
#include "zerorun/device.h"

namespace zerorun::train {

// Sequences of equal length, one after the other, with the target (the next token) of each token.
struct Batch {
  std::span<const int32_t> tokens;
  std::span<const int32_t> targets;
};

// The tokens on which the model works, in device memory. The caller does not wait for transfers.
// Beside a GPU a worker sorts the rows by token, which only the end of backward needs.
class TokenBatch {
 public:
  TokenBatch(Device& device, int64_t max_tokens);
  // `sorter`: the stream that sorts.
  TokenBatch(Device& device, int64_t max_tokens, std::unique_ptr<CpuStream> sorter);
  TokenBatch(const TokenBatch&) = delete;
  TokenBatch& operator=(const TokenBatch&) = delete;

  // Also sets targets, and lets the sorter begin, if `batch` has targets.
  void upload(const Batch& batch);

  const int32_t* tokens() const { return tokens_; }
  const int32_t* targets() const { return tokens_ + count_; }
  // The order of a batch that has targets; waits for the sorter.
  TokenOrder order();

 private:
  // Pinned memory of a batch, until the transfers have read it and the sorter is done with it.
  struct Staging {
    Buffer memory;
    int64_t distinct = 0;
    Event sorted;
    Event read;
  };
  // Transfers elements [begin, end) of what is staged.
  void transfer(size_t begin, size_t end);

  Device& device_;
  Buffer buffer_;
  std::array<Staging, 2> staging_;
  size_t next_ = 0;
  Staging* staged_ = nullptr;
  size_t count_ = 0;
  const int32_t* tokens_ = nullptr;
  const std::unique_ptr<CpuStream> sorter_;  // declared last: it ends before what it writes
};

}  // namespace zerorun::train
