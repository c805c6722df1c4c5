#include "zero/host_gradients.h"

#include <algorithm>

namespace zerorun {

namespace {

// One bucket is reduced while another is on its way down.
constexpr size_t kReducedSlots = 2;

// A sum that is added to another must not be rounded before.
DType dtype_of(const Sharding& sharding, Output output) {
  return output == Output::accumulate ? DType::fp32 : sharding.accum_dtype;
}

size_t staging_slot_nbytes(const Sharding& sharding, std::span<const Bucket> buckets) {
  int64_t numel = 0;
  for (const Bucket& bucket : buckets) {
    if (bucket.stored.offloaded) numel = std::max(numel, bucket.stored.numel);
  }
  const DType dtype = sharding.accumulation_steps > 1 ? DType::fp32 : sharding.accum_dtype;
  return static_cast<size_t>(numel) * size_of(dtype);
}

}  // namespace

size_t HostGradients::host_nbytes(const Sharding& sharding, std::span<const Bucket> buckets) {
  size_t nbytes = 0;
  for (const Bucket& bucket : buckets) {
    nbytes +=
        PinnedArena::nbytes_of(bucket.stored.numel - bucket.stored.host_from, sharding.accum_dtype);
  }
  return nbytes;
}

size_t HostGradients::device_nbytes(const Sharding& sharding, std::span<const Bucket> buckets) {
  return reduces_in_place(sharding) ? 0 : kReducedSlots * staging_slot_nbytes(sharding, buckets);
}

HostGradients::HostGradients(const EngineContext& context, std::span<const Bucket> buckets,
                             PinnedArena& arena, HostPipeline& pipeline)
    : context_(context), pipeline_(pipeline) {
  for (const Bucket& bucket : buckets) {
    memory_.push_back(
        arena.take(bucket.stored.numel - bucket.stored.host_from, context.accum_dtype));
  }
  if (reduces_in_place(context)) return;
  for (size_t i = 0; i < kReducedSlots; ++i) {
    slots_.push_back(
        {context.device.allocate(staging_slot_nbytes(context, buckets), MemoryCategory::buckets),
         {}});
  }
}

TensorView HostGradients::output(const Bucket& bucket, const BucketGradients& gradients,
                                 Output output, Stream& stream) {
  if (slots_.empty()) return gradients.reduced;  // reduced in place
  // CPU ranks reduce to where it rests, unless there is something to add to or a part stays.
  const bool whole = output == Output::overwrite && bucket.stored.host_from == 0;
  if (whole && context_.device.is_host()) return gradients.host_reduced;
  current_ = (current_ + 1) % slots_.size();
  Slot& slot = slots_[current_];
  TensorView view{nullptr, bucket.stored.numel, dtype_of(context_, output)};
  if (slot.memory.nbytes() < view.nbytes()) {  // a batch that goes on (extend_batch)
    slot.free.synchronize();
    slot.memory = context_.device.allocate(view.nbytes(), MemoryCategory::buckets);
  }
  stream.wait(slot.free);
  view.data = slot.memory.data();
  return view;
}

Event HostGradients::take(const Bucket& bucket, BucketGradients& gradients, TensorView reduced,
                          Output output, Stream& stream) {
  Device& device = context_.device;
  if (!slots_.empty() && bucket.stored.host_from > 0) {
    const TensorView kept = reduced.slice(0, bucket.stored.host_from);
    if (output == Output::accumulate) {
      device.add(stream, kept, gradients.reduced);
    } else {
      device.cast(stream, kept, gradients.reduced);
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
                           gradients.reduced_part(bucket, chunk.begin, chunk.numel()));
      pipeline_.fetched();
    }
    gradients.host_ready = copied = pipeline_.stream().record();
  }
  if (!slots_.empty()) slots_[current_].free = copied;
  return copied;
}

}  // namespace zerorun
