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
std::vector<int64_t> places_of(std::span<const Bucket> buckets) {
  std::vector<int64_t> places;
  std::map<ModuleId, int64_t> ends;
  int64_t most = 0;
  for (const Bucket& bucket : buckets) {
    places.push_back(0);
    if (!bucket.quantized_gather) continue;
    int64_t& end = ends[bucket.plan.module];
    if (!bucket.plan.shard_params) end = 0;  // one after the other
    places.back() = end;
    most = std::max(most, end += wire_nbytes(bucket));
  }
  places.push_back(most);
  return places;
}

}  // namespace

int64_t QuantizedGather::nbytes(std::span<const Bucket> buckets) {
  return places_of(buckets).back();
}

QuantizedGather::QuantizedGather(const EngineContext& context, std::span<Bucket> buckets)
    : context_(context) {
  const std::vector<int64_t> places = places_of(buckets);
  if (places.back() == 0) return;
  memory_ = context.device.allocate(static_cast<size_t>(places.back()), MemoryCategory::buckets);
  for (Bucket& bucket : buckets) {
    if (!bucket.quantized_gather) continue;
    const auto place = static_cast<size_t>(places[static_cast<size_t>(bucket.index)]);
    bucket.params.wire = view_of(memory_, DType::uint8, wire_nbytes(bucket), place);
  }
}

TensorView QuantizedGather::encode(const Bucket& bucket, TensorView shard, Stream& stream) const {
  const int64_t part = bucket.params.wire.numel / context_.sharding.place.shard_ranks;
  const TensorView own =
      bucket.params.wire.slice(context_.sharding.place.shard_rank() * part, part);
  bucket.clear_padding(bucket.owned_begin, shard, context_.device, stream);
  context_.device.quantize(stream, shard, own, {.bits = kBits});
  return own;
}

void QuantizedGather::start(const Bucket& bucket, TensorView shard, Stream& stream) {
  const TensorView own = encode(bucket, shard, stream);
  context_.groups.gathers().all_gather(own, bucket.params.wire, Sync::collective, stream,
                                       bucket.label);
}

void QuantizedGather::decode(const Bucket& bucket, TensorView full, Stream& stream) const {
  context_.device.dequantize(stream, bucket.params.wire, full, {.bits = kBits});
}

TensorView QuantizedGather::decoded_shard(const Bucket& bucket, Stream& stream) {
  const TensorView shard = bucket.params.shard;
  decoded_ = context_.device.allocate(shard.nbytes(), MemoryCategory::other);
  const TensorView decoded = view_of(decoded_, shard.dtype, shard.numel);
  context_.device.dequantize(stream, encode(bucket, shard, stream), decoded, {.bits = kBits});
  return decoded;
}

}  // namespace zerorun
