#pragma once

#include <cstdint>
#include <span>

#include "zero/groups/engine_context.h"
#include "zero/partition/bucket.h"
#include "zerorun/device.h"

namespace zerorun {

// Reduces a bucket's gradient over ranks of several hosts in two steps (qgZ of ZeRO++, arXiv
// 2306.10209; device/quantized.h has the format on the wire). First, the ranks of each host add
// their gradients; each adds the slices of all ranks that have its index on their hosts. Then those
// ranks exchange the sums in 4 or 8 bits, and each adds the slice that it owns in fp32, in the
// order of hosts, the sum of its own host without rounding. So a slice is rounded once per other
// host, and its sum is computed on one rank only.
//
// In the first step, ranks that can read each other's memory add without quantization; other ranks
// exchange 8 bits.
//
// The rounding error of a slice can be added to the next gradient (LoCo; Quantization::lost).
class QuantizedReduction {
 public:
  static constexpr int kBitsWithin = 8;
  static int bits_across(const Sharding& sharding) {
    return static_cast<int>(sharding.zero.quantized_gradient_bits);
  }

  // The bytes that a QuantizedReduction allocates.
  struct Sizes {
    int64_t buffers = 0;
    int64_t lost = 0;
  };
  static Sizes sizes(const Sharding& sharding, std::span<const Bucket> buckets);

  // Places the rounding errors of the buckets.
  QuantizedReduction(const EngineContext& context, std::span<Bucket> buckets);

  // Writes the stored range of the sum of all ranks' `outgoing` to `reduced`, which may be a part
  // of `outgoing`.
  Event run(const Bucket& bucket, TensorView outgoing, TensorView reduced, Output output,
            Stream& stream);
  // Called after the last reduction of a batch.
  void end_batch(Stream& stream);

 private:
  // The sum over this host's ranks of the slices of all ranks with this rank's index on their
  // hosts. If each host has one rank, it is `outgoing`.
  TensorView add_within_host(const Bucket& bucket, TensorView outgoing, Stream& stream);
  // Quantizes the elements [begin, end) of this host's sums into their place in `sent`.
  void quantize_for_hosts(TensorView partial, TensorView lost, TensorView sent, int64_t begin,
                          int64_t end, Stream& stream);
  // The memory for sent and received quantized data of `numel` elements.
  struct Wire {
    TensorView sent;
    TensorView received;
  };
  Wire wire(int64_t numel, int bits) const;
  Quantization how(int bits, TensorView lost) const;

  const EngineContext& context_;
  Buffer partial_;  // fp32
  Buffer wire_;
  Buffer lost_memory_;
  int64_t batches_ = 0;
};

}  // namespace zerorun
