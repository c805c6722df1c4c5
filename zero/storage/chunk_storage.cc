#include "zero/storage/chunk_storage.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "zero/partition/model_spec.h"
#include "zero/partition/muon_rounds.h"

namespace zerorun {

const Optimizer& rule_of(std::span<const Optimizer> rules, bool use_muon) {
  return use_muon ? rules.back() : rules.front();
}

bool keeps_master(const Sharding& sharding, const Bucket& bucket, const Chunk& chunk) {
  return chunk.on_host || sharding.precision.separate_master() || bucket.moves_params;
}

std::vector<StateLayout> state_layouts(const Sharding& sharding, std::span<const Optimizer> rules,
                                       std::span<const Bucket> buckets, bool on_host) {
  std::vector<StateLayout> layouts;
  for (const Bucket& bucket : buckets) {
    if (!bucket.plan.trainable) continue;
    for (const Chunk& chunk : bucket.chunks) {
      if (chunk.on_host != on_host) continue;
      StateLayout& layout = layouts.emplace_back();
      layout.numel = chunk.numel();
      if (keeps_master(sharding, bucket, chunk)) {
        layout.tensors.push_back({"master", sharding.precision.master_dtype()});
      }
      const auto states = rule_of(rules, bucket.plan.use_muon).states();
      layout.tensors.insert(layout.tensors.end(), states.begin(), states.end());
    }
  }
  return layouts;
}

ChunkStorage::ChunkStorage(const EngineContext& context, std::vector<Optimizer> rules,
                           StateStores stores, HostPipeline* pipeline,
                           OffloadedParameters* parameters)
    : context_(context),
      rules_(std::move(rules)),
      stores_(std::move(stores)),
      pipeline_(pipeline),
      parameters_(parameters) {}

std::vector<TensorView> ChunkStorage::with_master(const Bucket& bucket, const Chunk& chunk,
                                                  std::vector<TensorView> states) const {
  if (!keeps_master(context_.sharding, bucket, chunk)) {
    states.insert(states.begin(), bucket.params_of(chunk));
  }
  return states;
}

ActiveChunk ChunkStorage::acquire(const Bucket& bucket, const Chunk& chunk, Content content) {
  Device& device = chunk.on_host ? pipeline_->host() : context_.device;
  Stream& stream = chunk.on_host ? pipeline_->stream() : device.inline_stream();
  std::vector<TensorView> states = store_of(chunk).acquire(chunk.state_index, stream, content);
  return {bucket, chunk, device, stream, with_master(bucket, chunk, std::move(states))};
}

void ChunkStorage::release(const ActiveChunk& active, size_t changed) {
  store_of(active.chunk).release(active.chunk.state_index, active.stream, changed);
}

std::vector<TensorView> ChunkStorage::stored_states(const Bucket& bucket, const Chunk& chunk) {
  return with_master(bucket, chunk, store_of(chunk).stored(chunk.state_index));
}

TensorView ChunkStorage::part_of(const Bucket& bucket, TensorView state, size_t index,
                                 int64_t begin, int64_t numel) const {
  if (index == 0) return state.slice(begin, numel);
  const StateSpec& spec = rule(bucket).states()[index - 1];
  ZR_CHECK(begin % spec.block == 0, "{} cannot be cut at element {}", spec.name, begin);
  return state.slice(begin / spec.block, spec.numel(numel));
}

TensorView ChunkStorage::acquire_params(const Bucket& bucket, const Chunk& chunk, Content content) {
  if (!bucket.moves_params) return bucket.params_of(chunk);
  return parameters_->acquire(bucket, chunk, context_.device.host().inline_stream(), content);
}

void ChunkStorage::release_params(const Bucket& bucket, const Chunk& chunk, bool changed) {
  if (!bucket.moves_params) return;
  parameters_->release(bucket, chunk, context_.device.host().inline_stream(), changed);
}

TensorView ChunkStorage::open_params(const ActiveChunk& active) {
  const auto& [bucket, chunk, device, stream, states] = active;
  if (bucket.moves_params) return parameters_->outgoing(bucket, chunk, device, stream);
  if (sends_params(active))
    return pipeline_->outgoing(chunk.numel(), context_.sharding.precision.param_dtype);
  return bucket.params_of(chunk);
}

void ChunkStorage::close_params(const ActiveChunk& active, TensorView params) {
  const auto& [bucket, chunk, device, stream, states] = active;
  if (bucket.moves_params) {
    parameters_->store(bucket, chunk, device, stream);
  } else if (sends_params(active)) {
    pipeline_->send(params, bucket.params_of(chunk));
  }
}

void ChunkStorage::store(const ActiveChunk& active, TensorView params) {
  const auto& [bucket, chunk, device, stream, states] = active;
  if (context_.sharding.precision.master_is_param &&
      keeps_master(context_.sharding, bucket, chunk)) {
    device.cast(stream, states[0], params);
  }
  close_params(active, params);
  release(active);
}

Event ChunkStorage::params_stored(const Bucket& bucket) {
  const bool sends = !bucket.moves_params && !context_.device.is_host();
  return sends ? pipeline_->sent() : pipeline_->stream().record();
}

void ChunkStorage::expect(std::span<const Bucket> buckets) {
  if (!stores_.host) return;
  std::vector<int> chunks;
  for (const bool muon : {true, false}) {  // as ShardedStep::run takes them
    for (const Bucket& bucket : buckets) {
      for (const Chunk& chunk : bucket.chunks) {
        if (chunk.on_host && bucket.plan.use_muon == muon) chunks.push_back(chunk.state_index);
      }
    }
  }
  stores_.host->expect(chunks);
}

void ChunkStorage::offload_states() {
  if (!context_.device.is_host()) stores_.device->offload();
}

void ChunkStorage::accept_changes() {
  if (stores_.host) stores_.host->accept_changes();
  if (parameters_ != nullptr) parameters_->accept_changes();
}

DirectionSize direction_size(const Sharding& sharding, std::span<const Optimizer> rules,
                             std::span<const Bucket> buckets) {
  DirectionSize size;
  for (const Bucket& bucket : buckets) {
    if (!bucket.plan.trainable) continue;
    const Optimizer::Passes passes = rule_of(rules, bucket.plan.use_muon).passes();
    if (passes == Optimizer::Passes::lamb) size.numel = std::max(size.numel, bucket.stored.numel);
    if (passes != Optimizer::Passes::muon) continue;
    for (const SizedParameter& parameter : bucket.plan.parameters) {
      const MuonMatrices matrices = muon_matrices(sharding.spec(parameter.parameter));
      size.work = std::max(size.work, orthogonalize_work(matrices.rows, matrices.cols));
    }
  }
  for (const MuonRound& round : muon_rounds(sharding, buckets)) {
    size.numel = std::max(size.numel, round.numel);
  }
  return size;
}

DirectionMemory::DirectionMemory(Device& device, Communicator& shards, DirectionSize size) {
  if (size.numel == 0) return;
  const size_t nbytes = static_cast<size_t>(size.numel) * sizeof(float);
  direction_ = allocate_shared(device, shards, nbytes, Sharing::per_rank, MemoryCategory::buckets);
  work_ = device.allocate(static_cast<size_t>(size.work) * sizeof(float), MemoryCategory::buckets);
}

}  // namespace zerorun
