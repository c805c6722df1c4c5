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

}  // namespace zerorun
