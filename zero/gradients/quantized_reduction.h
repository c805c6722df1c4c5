#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "zero/groups/engine_context.h"
#include "zero/partition/bucket.h"
#include "zerorun/device.h"

namespace zerorun {

// Adds a bucket's gradient over ranks of several hosts in two hops (qgZ of ZeRO++;
// device/quantized.h has the format of what is sent). First the ranks of each host add theirs, each
// the slices of those ranks that have its number on their hosts; then those ranks exchange these
// sums in 4 bits, and each adds what is for it, in fp32 and in the order of hosts, its own host's
// as it is. So a slice is rounded to 4 bits once for each other host, and its sum is on one rank
// only.
//
// Ranks that read each other's memory add in it, as ever; others exchange 8 bits in the first hop
// too.
//
// What is lost when a slice is rounded can be added to the next one (LoCo; Quantization::lost).
class QuantizedReduction {
 public:
  static constexpr int kBitsWithin = 8;
  static constexpr int kBitsAcross = 4;

  // Bytes of its memory.
  struct Sizes {
    int64_t buffers = 0;
    int64_t lost = 0;
  };
  static Sizes sizes(const Sharding& sharding, std::span<const Bucket> buckets);

  QuantizedReduction(const EngineContext& context, std::span<const Bucket> buckets);

  // As GroupReduction::run.
  Event run(const Bucket& bucket, TensorView outgoing, TensorView reduced, Output output,
            Stream& stream);
  // After the last reduction of a batch.
  void end_batch(Stream& stream);

 private:
  // The losses of a bucket's slices, in either hop.
  struct Lost {
    TensorView within;
    TensorView across;
  };

  // The sum of this host's ranks, of the slices of all ranks with this one's number; or, where each
  // rank is alone on its host, `outgoing`.
  TensorView add_within_host(const Bucket& bucket, TensorView outgoing, Stream& stream);
  // Quantizes the elements [begin, end) of this host's sums, into their place in `sent`.
  void quantize_for_hosts(TensorView partial, TensorView lost, TensorView sent, int64_t begin,
                          int64_t end, Stream& stream);
  // The two halves of `numel` elements' memory: what is sent, and what is received.
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
  std::vector<Lost> lost_;  // by bucket
  int64_t batches_ = 0;
};

}  // namespace zerorun
