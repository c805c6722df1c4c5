#include "zero/parameters/gathers.h"

#include <algorithm>
#include <map>
#include <utility>
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

TensorView QuantizedGather::encode(const Bucket& bucket, int64_t begin, TensorView part,
                                   Stream& stream) const {
  const TensorView bytes =
      bucket.params.wire.slice(quantized_nbytes(begin, kBits), quantized_nbytes(part.numel, kBits));
  bucket.clear_padding(begin, part, context_.device, stream);
  context_.device.quantize(stream, part, bytes, {.bits = kBits});
  return bytes;
}

void QuantizedGather::start(const Bucket& bucket, TensorView shard, Stream& stream) {
  const TensorView own = encode(bucket, bucket.owned_begin, shard, stream);
  context_.groups.gathers().all_gather(own, bucket.params.wire, Sync::collective, stream,
                                       bucket.label);
}

void QuantizedGather::decode(const Bucket& bucket, TensorView full, Stream& stream) const {
  context_.device.dequantize(stream, bucket.params.wire, full, {.bits = kBits});
}

Buffer QuantizedGather::decoded(const Bucket& bucket, int64_t begin, int64_t numel,
                                Stream& stream) const {
  const TensorView part = bucket.params.shard.slice(begin - bucket.owned_begin, numel);
  Buffer values = context_.device.allocate(part.nbytes(), MemoryCategory::other);
  context_.device.dequantize(stream, encode(bucket, begin, part, stream),
                             view_of(values, part.dtype, numel), {.bits = kBits});
  return values;
}

void UpdatedParameters::gather(const Bucket& bucket, Stream& stream) {
  if (bucket.plan.shard_params) return;  // peers read shards where they lie
  stream.wait(context_.device.inline_stream().record());
  const BucketParameters& params = bucket.params;
  Event gathered;
  if (bucket.quantized_gather) {
    quantized_.start(bucket, params.shard, stream);
    quantized_.decode(bucket, params.full, stream);
    gathered = stream.record();
  } else {
    gathered = context_.groups.shards(bucket.plan.ranks)
                   .all_gather(params.shard, params.full, Sync::collective, stream, bucket.label);
  }
  if (&stream == &context_.device.inline_stream()) return;  // nothing comes before it there
  buckets_[static_cast<size_t>(bucket.index)].params.updated = std::move(gathered);
}

void UpdatedParameters::end(Stream& stream) {
  if (!context_.sharding.policy.shard_params) return;
  const bool any_sharded = std::any_of(buckets_.begin(), buckets_.end(), [](const Bucket& bucket) {
    return bucket.plan.shard_params;
  });
  if (any_sharded) {
    stream.wait(context_.device.inline_stream().record());
    context_.groups.shards().barrier(stream, "updated parameters");
    context_.device.inline_stream().wait(stream.record());
  }
  wait();  // for those that are small enough to be whole
}

void UpdatedParameters::finish(Stream& stream) {
  end(stream);
  wait();
  stream.synchronize();
}

void UpdatedParameters::wait(const Bucket& bucket) const {
  Event& updated = buckets_[static_cast<size_t>(bucket.index)].params.updated;
  if (updated.state() == nullptr) return;
  context_.device.inline_stream().wait(std::exchange(updated, {}));
}

void UpdatedParameters::wait() const {
  for (const Bucket& bucket : buckets_) wait(bucket);
}

Buffer UpdatedParameters::decoded_part(const Bucket& bucket, ParameterId id) const {
  if (!bucket.quantized_gather || bucket.plan.shard_params) return {};
  wait();  // for all gathers that use the same bytes
  for (const Interval& part : bucket.layout.shard_intervals(context_.sharding.place.shard_rank())) {
    if (part.parameter != id) continue;
    const int64_t blocks = (part.numel + kQuantizedBlock - 1) / kQuantizedBlock;
    Stream& stream = context_.device.inline_stream();
    Buffer values = quantized_.decoded(bucket, part.offset, blocks * kQuantizedBlock, stream);
    stream.synchronize();
    return values;
  }
  return {};
}

}  // namespace zerorun
