#include "zero/gradients/group_reduction.h"

#include <algorithm>

namespace zerorun {

int64_t partial_numel(const Sharding& sharding, std::span<const Bucket> buckets) {
  int64_t numel = 0;
  if (sharding.replicas() == 1) return 0;
  for (const Bucket& bucket : buckets) {
    if (bucket.plan.trainable) numel = std::max(numel, bucket.layout.shard_numel);
  }
  return numel;
}

GroupReduction::GroupReduction(const EngineContext& context, std::span<const Bucket> buckets)
    : context_(context), quantized_(context, buckets) {
  const TensorView shape{nullptr, partial_numel(context, buckets), context.partial_dtype};
  if (!shape.empty()) partial_ = context.device.allocate(shape.nbytes(), MemoryCategory::buckets);
}

Event GroupReduction::run(const Bucket& bucket, TensorView outgoing, TensorView reduced,
                          Output output, Stream& stream) {
  if (context_.cross_group) return quantized_.run(bucket, outgoing, reduced, output, stream);
  const std::string& label = bucket.label;
  Communicator& replicas = *context_.replica_group;
  const TensorView partial = view_of(partial_, context_.partial_dtype, reduced.numel);
  context_.shard_group->reduce_scatter(outgoing, partial, Output::overwrite, stream, label);
  if (reduced.dtype == DType::fp32 || reduced.dtype == partial.dtype) {
    return replicas.all_reduce(partial, reduced, ReduceOp::sum, output, stream, label);
  }
  replicas.all_reduce(partial, partial, ReduceOp::sum, Output::overwrite, stream, label);
  if (output == Output::accumulate) {
    context_.device.add(stream, partial, reduced);
  } else {
    context_.device.cast(stream, partial, reduced);
  }
  return stream.record();
}

}  // namespace zerorun
