#include "zero/parameters/updated_parameters.h"

#include <algorithm>
#include <utility>

namespace zerorun {

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
