#include "zero/storage/offload.h"

#include <algorithm>
#include <array>
#include <string>

#include "comm/agreement.h"
#include "core/check.h"
#include "offload/direct_file.h"
#include "offload/nvme_state_store.h"
#include "zero/storage/chunk_storage.h"

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

// One is copied while the other is computed on.
constexpr int kStagingSlots = 2;

std::unique_ptr<StateStore> make_store(const EngineContext& context, PinnedArena& arena,
                                       std::span<const StateLayout> chunks) {
  const OffloadOptimizerConfig& config = context.sharding.offload.optimizer;
  if (config.device == OffloadDevice::cpu) return make_host_state_store(arena, chunks);
  return make_nvme_state_store(
      context.device, arena, chunks,
      {.folder = config.nvme_path.value_or(""),
       .label = fmt::format("optimizer states of rank {}", context.sharding.place.rank),
       .buffer_count = static_cast<int>(config.buffer_count),
       .aio = context.sharding.offload.aio});
}

void warn(const EngineContext& context, const std::string& advice) {
  if (!advice.empty()) context.log().warning("offloading: {}", advice);
}

std::array<FileRequest, 2> files_of(const EngineContext& context, const OffloadSizes& sizes) {
  const OffloadConfig& places = context.sharding.offload;
  return {{{places.optimizer.nvme_path.value_or(""), sizes.states_file, {}},
           {places.param.nvme_path.value_or(""), sizes.parameters.file,
            OffloadedParameters::kFilePurpose}}};
}

// Tells the user that offload_param asks for a file that would hold nothing; empty otherwise.
std::string unused_file_advice(const Sharding& sharding, const OffloadedParameters::Sizes& sizes) {
  const OffloadParamConfig& config = sharding.offload.param;
  if (config.device != OffloadDevice::nvme || sizes.file > 0) return {};
  if (sizes.memory == 0) {
    return fmt::format(
        "no parameter is on NVMe: none has more than the {} elements of "
        "/zero_optimization/stage3_param_persistence_threshold, up to which they stay on the "
        "device",
        sharding.zero.param_persistence_threshold);
  }
  return fmt::format(
      "no parameter is on NVMe: all of each rank's fit into the {} elements of "
      "/zero_optimization/offload_param/max_in_cpu, which stay in memory; 0 moves them to the disk",
      config.max_in_cpu);
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
    pipeline_.stream().wait(done);  // of a rank that has nothing of the bucket on its host
    gradients.host_ready = copied = pipeline_.stream().record();
  }
  if (in_slot) slots_.release(slots_.last(), copied);
  return copied;
}

OffloadSizes offload_sizes(const Sharding& sharding, std::span<const Optimizer> rules,
                           std::span<const Bucket> buckets,
                           std::span<const StateLayout> host_chunks) {
  OffloadSizes sizes;
  int64_t largest = 0;
  for (const StateLayout& chunk : host_chunks) {
    largest = std::max(largest, chunk.numel);
    sizes.states += host_state_nbytes(chunk);
  }
  const OffloadOptimizerConfig& config = sharding.offload.optimizer;
  if (config.device == OffloadDevice::nvme) {
    sizes.states = nvme_staging_nbytes(host_chunks, static_cast<int>(config.buffer_count));
    sizes.states_file = nvme_file_nbytes(host_chunks);
  }
  // Gradients that are added, and directions, go in fp32.
  const bool has_direction = direction_size(sharding, rules, buckets).numel > 0;
  const DType uploaded = has_direction ? DType::fp32 : sharding.precision.param_dtype;
  sizes.to_host = {kStagingSlots, PinnedArena::nbytes_of(largest, DType::fp32)};
  // CPU ranks write parameters where they belong.
  const bool sends = has_direction || !sharding.computes_on_host;
  sizes.to_device = {sends ? kStagingSlots : 0, PinnedArena::nbytes_of(largest, uploaded)};
  sizes.gradients = HostGradients::host_nbytes(sharding, buckets);
  sizes.parameters = OffloadedParameters::sizes(sharding, buckets);
  return sizes;
}

Offload::Offload(const EngineContext& context, std::span<Bucket> buckets, const OffloadSizes& sizes,
                 std::span<const StateLayout> host_chunks)
    : arena(context.device, sizes.pinned()) {
  // The first two need whole pages of the arena.
  if (context.sharding.moves_parameters()) {
    parameters = std::make_unique<OffloadedParameters>(context, buckets, arena);
  }
  if (!context.sharding.offloads_states()) return;
  states = make_store(context, arena, host_chunks);
  pipeline = std::make_unique<HostPipeline>(context.device, arena, sizes.to_host, sizes.to_device);
  gradients = std::make_unique<HostGradients>(context, buckets, arena, *pipeline);
}

std::unique_ptr<Offload> make_offload(const EngineContext& context, std::span<Bucket> buckets,
                                      std::span<const Optimizer> rules) {
  if (!context.sharding.offloads_states() && !context.sharding.moves_parameters()) return nullptr;
  const std::vector<StateLayout> chunks = state_layouts(context.sharding, rules, buckets, true);
  const OffloadSizes sizes = offload_sizes(context.sharding, rules, buckets, chunks);
  const std::array<FileRequest, 2> files = files_of(context, sizes);
  const int local_ranks = context.groups.comm.local_world_size();
  Agreement agreement(context.groups.comm, context.device.inline_stream());
  // A rank that looked later would miss the space that another one has taken: all look first.
  agreement.run("room for what is offloaded", [&] { check_room(files, local_ranks); });
  warn(context, locking_advice(host_limits(), sizes.registered(), local_ranks));
  warn(context, unused_file_advice(context.sharding, sizes.parameters));
  try {
    return std::make_unique<Offload>(context, buckets, sizes, chunks);
  } catch (const ConfigError& error) {
    // There was room for all a moment ago: what this rank met, its peers may not have. They cannot
    // be asked here: pinning memory waits for a shared GPU, and so for ranks that wait for this
    // one.
    if (context.sharding.place.world_size > 1) throw IoError(error.what());
    throw;
  }
}

}  // namespace zerorun
