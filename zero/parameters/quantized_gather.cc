#include "zero/parameters/quantized_gather.h"

#include <algorithm>
#include <map>
#include <vector>

namespace zerorun {

namespace {

int64_t wire_nbytes(const Bucket& bucket) {
  return quantized_nbytes(bucket.layout.padded_numel(), QuantizedGather::kBits);
}

// The place where each bucket's bytes begin among those of its module; the last number is their
// most.
std::vector<int64_t> places_of(const Sharding& sharding, std::span<const Bucket> buckets) {
  std::vector<int64_t> places;
  std::map<ModuleId, int64_t> ends;
  int64_t most = 0;
  for (const Bucket& bucket : buckets) {
    places.push_back(0);
    if (!QuantizedGather::takes(sharding, bucket)) continue;
    int64_t& end = ends[bucket.plan.module];
    places.back() = end;
    most = std::max(most, end += wire_nbytes(bucket));
  }
  places.push_back(most);
  return places;
}

}  // namespace

bool QuantizedGather::takes(const Sharding& sharding, const Bucket& bucket) {
  const ZeroConfig& zero = sharding.zero;
  return bucket.plan.quantized && bucket.plan.shard_params &&
         !bucket.plan.dtype &&  // else it would be cast
         (zero.quantized_weights ||
          (zero.quantized_nontrainable_weights && !bucket.plan.trainable));
}

int64_t QuantizedGather::nbytes(const Sharding& sharding, std::span<const Bucket> buckets) {
  return places_of(sharding, buckets).back();
}

QuantizedGather::QuantizedGather(const EngineContext& context, std::span<Bucket> buckets)
    : context_(context) {
  const std::vector<int64_t> places = places_of(context.sharding, buckets);
  if (places.back() == 0) return;
  memory_ = context.device.allocate(static_cast<size_t>(places.back()), MemoryCategory::buckets);
  for (Bucket& bucket : buckets) {
    if (!takes(context.sharding, bucket)) continue;
    const auto place = static_cast<size_t>(places[static_cast<size_t>(bucket.index)]);
    bucket.params.wire = view_of(memory_, DType::uint8, wire_nbytes(bucket), place);
  }
}

void QuantizedGather::start(const Bucket& bucket, TensorView shard, Stream& stream) {
  const TensorView all = bucket.params.wire;
  const int64_t part = all.numel / context_.sharding.place.shard_ranks;
  const TensorView own = all.slice(context_.sharding.place.shard_rank() * part, part);
  bucket.clear_padding(bucket.owned_begin, shard, context_.device, stream);
  context_.device.quantize(stream, shard, own, {.bits = kBits});
  context_.groups.gathers().all_gather(own, all, Sync::collective, stream, bucket.label);
}

void QuantizedGather::decode(const Bucket& bucket, TensorView full, Stream& stream) const {
  context_.device.dequantize(stream, bucket.params.wire, full, {.bits = kBits});
}

}  // namespace zerorun
