#include "zero/storage/offloaded_parameters.h"

#include <algorithm>

#include "core/check.h"
#include "device/cpu/cpu_stream.h"
#include "device/drain.h"
#include "offload/nvme_state_store.h"

namespace zerorun {

namespace {

// One chunk is updated while another is copied to the host.
constexpr size_t kUpdateSlots = 2;

std::vector<StateLayout> layouts(std::span<const Bucket> buckets, bool in_memory) {
  std::vector<StateLayout> layouts;
  for (const Bucket& bucket : buckets) {
    if (!bucket.moves_params) continue;
    for (const Chunk& chunk : bucket.chunks) {
      if (chunk.param_in_file == in_memory) continue;
      layouts.push_back({chunk.numel(), {{"param", bucket.dtype}}});
    }
  }
  return layouts;
}

// The size of the largest chunk that the device updates; 0 when it writes host memory itself.
size_t update_slot_nbytes(const Sharding& sharding, std::span<const Bucket> buckets) {
  int64_t numel = 0;
  for (const Bucket& bucket : buckets) {
    if (!bucket.plan.trainable || !bucket.moves_params) continue;
    for (const Chunk& chunk : bucket.chunks) {
      if (!chunk.on_host) numel = std::max(numel, chunk.numel());
    }
  }
  return sharding.computes_on_host
             ? 0
             : static_cast<size_t>(numel) * size_of(sharding.precision.param_dtype);
}

int buffer_count(const Sharding& sharding) {
  return static_cast<int>(sharding.offload.param.buffer_count);
}

}  // namespace

OffloadedParameters::Sizes OffloadedParameters::sizes(const Sharding& sharding,
                                                      std::span<const Bucket> buckets) {
  Sizes sizes;
  if (!sharding.moves_parameters()) return sizes;
  for (const StateLayout& chunk : layouts(buckets, true)) {
    sizes.memory += host_state_nbytes(chunk);
  }
  sizes.memory = align_direct(sizes.memory);
  const std::vector<StateLayout> in_file = layouts(buckets, false);
  sizes.staging = nvme_staging_nbytes(in_file, buffer_count(sharding));
  sizes.file = nvme_file_nbytes(in_file);
  sizes.device = kUpdateSlots * update_slot_nbytes(sharding, buckets);
  return sizes;
}

OffloadedParameters::OffloadedParameters(const EngineContext& context,
                                         std::span<const Bucket> buckets, PinnedArena& arena)
    : context_(context),
      to_device_(context.device.make_stream("zerorun-param-to-device")),
      to_host_(context.device.make_stream("zerorun-param-to-host")) {
  serve_offloading(*to_device_);
  serve_offloading(*to_host_);
  const OffloadParamConfig& config = context.sharding.offload.param;
  if (config.device == OffloadDevice::nvme) {
    const NvmeOptions options{
        .folder = config.nvme_path.value_or(""),
        .label = fmt::format("parameters of rank {}", context.sharding.place.rank),
        .purpose = kFilePurpose,
        .buffer_count = buffer_count(context.sharding),
        .aio = context.sharding.offload.aio};
    file_ = make_nvme_state_store(context.device, arena, layouts(buckets, false), options);
  }
  const size_t begin = arena.taken();
  memory_ = make_host_state_store(arena, layouts(buckets, true));
  const size_t taken = arena.taken() - begin;
  arena.take(static_cast<int64_t>(align_direct(taken) - taken), DType::uint8);
  for (const Bucket& bucket : buckets) written_.emplace_back(bucket.chunks.size());
  if (const size_t nbytes = update_slot_nbytes(context.sharding, buckets); nbytes > 0) {
    for (size_t i = 0; i < kUpdateSlots; ++i) {
      slots_.add(context.device.allocate(nbytes, MemoryCategory::buckets));
    }
  }
}

TensorView OffloadedParameters::acquire(const Bucket& bucket, const Chunk& chunk, Stream& stream,
                                        Content content) {
  stream.wait(written(bucket, chunk));
  if (content == Content::overwritten) stream.wait(fetched_);
  return store_of(chunk).acquire(chunk.param_index, stream, content)[0];
}

void OffloadedParameters::release(const Bucket& bucket, const Chunk& chunk, Stream& stream,
                                  bool changed) {
  if (changed) written(bucket, chunk) = stream.record();
  store_of(chunk).release(chunk.param_index, stream, changed ? 1 : 0);
}

Event OffloadedParameters::fetch(const Bucket& bucket, TensorView shard) {
  to_device_->wait(context_.device.inline_stream().record());
  for (const Chunk& chunk : bucket.chunks) {
    const TensorView home = acquire(bucket, chunk, *to_device_, Content::needed);
    context_.device.upload(*to_device_, home.data, shard.slice(chunk.begin, chunk.numel()));
    release(bucket, chunk, *to_device_, false);
  }
  return fetched_ = to_device_->record();
}

TensorView OffloadedParameters::outgoing(const Bucket& bucket, const Chunk& chunk, Device& writer,
                                         Stream& stream) {
  if (writer.is_host()) return acquire(bucket, chunk, stream, Content::overwritten);
  return slots_.view(slots_.take(stream), chunk.numel(), context_.sharding.precision.param_dtype);
}

void OffloadedParameters::store(const Bucket& bucket, const Chunk& chunk, Device& writer,
                                Stream& stream) {
  if (writer.is_host()) return release(bucket, chunk, stream, true);
  const size_t slot = slots_.last();
  to_host_->wait(stream.record());
  const TensorView home = acquire(bucket, chunk, *to_host_, Content::overwritten);
  writer.download(*to_host_,
                  slots_.view(slot, chunk.numel(), context_.sharding.precision.param_dtype),
                  home.data);
  release(bucket, chunk, *to_host_, true);
  slots_.release(slot, to_host_->record());
}

TensorView OffloadedParameters::stored(const Bucket& bucket, const Chunk& chunk) {
  written(bucket, chunk).synchronize();
  fetched_.synchronize();  // the caller may write
  return store_of(chunk).stored(chunk.param_index)[0];
}

void OffloadedParameters::accept_changes() {
  if (file_) file_->accept_changes();
}

void OffloadedParameters::drain() noexcept {
  for (Stream* stream : {to_device_.get(), to_host_.get()}) zerorun::drain(*stream);
}

}  // namespace zerorun
