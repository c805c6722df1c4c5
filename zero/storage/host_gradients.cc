#include "zero/storage/host_gradients.h"

#include <algorithm>

namespace zerorun {

namespace {

// One bucket is reduced while another is copied to the host.
constexpr size_t kReducedSlots = 2;

// A sum that is added to another must not be rounded before.
DType dtype_of(const Sharding& sharding, Output output) {
  return output == Output::accumulate ? DType::fp32 : sharding.precision.accum_dtype;
}

size_t staging_slot_nbytes(const Sharding& sharding, std::span<const Bucket> buckets) {
  int64_t numel = 0;
  for (const Bucket& bucket : buckets) {
    if (bucket.stored.offloaded) numel = std::max(numel, bucket.stored.numel);
  }
  const DType dtype =
      sharding.accumulation_steps > 1 ? DType::fp32 : sharding.precision.accum_dtype;
  return static_cast<size_t>(numel) * size_of(dtype);
}

}  // namespace

size_t HostGradients::host_nbytes(const Sharding& sharding, std::span<const Bucket> buckets) {
  size_t nbytes = 0;
  for (const Bucket& bucket : buckets) {
    nbytes += PinnedArena::nbytes_of(bucket.stored.numel - bucket.stored.host_from,
                                     sharding.precision.accum_dtype);
  }
  return nbytes;
}

size_t HostGradients::device_nbytes(const Sharding& sharding, std::span<const Bucket> buckets) {
  return reduces_in_place(sharding) ? 0 : kReducedSlots * staging_slot_nbytes(sharding, buckets);
}

HostGradients::HostGradients(const EngineContext& context, std::span<Bucket> buckets,
                             PinnedArena& arena, HostPipeline& pipeline)
    : context_(context), pipeline_(pipeline) {
  for (Bucket& bucket : buckets) {
    bucket.grads.host_reduced = arena.take(bucket.stored.numel - bucket.stored.host_from,
                                           context.sharding.precision.accum_dtype);
  }
  if (reduces_in_place(context.sharding)) return;
  for (size_t i = 0; i < kReducedSlots; ++i) {
    slots_.add(context.device.allocate(staging_slot_nbytes(context.sharding, buckets),
                                       MemoryCategory::buckets));
  }
}

TensorView HostGradients::output(const Bucket& bucket, Output output, Stream& stream) {
  const BucketGradients& gradients = bucket.grads;
  if (reduces_in_place(context_.sharding) && output == Output::overwrite) return gradients.reduced;
  // CPU ranks reduce to its storage, unless they add to what is there or a part is not offloaded.
  const bool whole = output == Output::overwrite && bucket.stored.host_from == 0;
  if (whole && context_.device.is_host()) return gradients.host_reduced;
  const DType dtype = dtype_of(context_.sharding, output);
  const size_t nbytes = static_cast<size_t>(bucket.stored.numel) * size_of(dtype);
  while (slots_.size() < kReducedSlots) {  // another round is added to what was reduced in place
    slots_.add(context_.device.allocate(nbytes, MemoryCategory::buckets));
  }
  const size_t slot = slots_.take(stream);
  if (slots_.nbytes(slot) < nbytes) {  // of fp32, for a further round
    slots_.synchronize(slot);
    slots_.replace(slot, context_.device.allocate(nbytes, MemoryCategory::buckets));
  }
  return slots_.view(slot, bucket.stored.numel, dtype);
}

Event HostGradients::take(Bucket& bucket, TensorView reduced, Output output, Stream& stream) {
  BucketGradients& gradients = bucket.grads;
  Device& device = context_.device;
  const bool in_slot = reduced.data != gradients.reduced.data;
  if (in_slot && bucket.stored.host_from > 0) {
    const TensorView kept = reduced.slice(0, bucket.stored.host_from);
    const TensorView target = gradients.reduced.slice(0, bucket.stored.host_from);
    if (output == Output::accumulate) {
      device.add(stream, kept, target);
    } else {
      device.cast(stream, kept, target);
    }
  }
  const Event done = stream.record();
  if (reduced.data == gradients.host_reduced.data) return gradients.host_ready = done;
  Event copied = done;
  if (output == Output::overwrite) {
    const int64_t numel = bucket.stored.numel - bucket.stored.host_from;
    gradients.host_ready = copied = pipeline_.fetch(reduced.slice(bucket.stored.host_from, numel),
                                                    gradients.host_reduced, done);
  } else {
    for (const Chunk& chunk : bucket.chunks) {
      if (!chunk.on_host) continue;
      const TensorView staged = pipeline_.fetch(reduced.slice(chunk.begin, chunk.numel()), done);
      pipeline_.host().add(pipeline_.stream(), staged,
                           bucket.reduced_part(chunk.begin, chunk.numel()));
      pipeline_.fetched();
    }
    gradients.host_ready = copied = pipeline_.stream().record();
  }
  if (in_slot) slots_.release(slots_.last(), copied);
  return copied;
}

}  // namespace zerorun
