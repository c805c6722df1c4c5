#include "zero/update/optimizer_states.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <exception>
#include <limits>
#include <utility>

#include "comm/agreement.h"
#include "core/check.h"

namespace zerorun {

namespace {

bool has_part_of(const Bucket& bucket, const Chunk& chunk, ParameterId parameter) {
  const int64_t begin = bucket.stored.begin + chunk.begin;
  const int64_t end = bucket.stored.begin + chunk.end;
  const auto& placements = bucket.layout.placements;
  return std::any_of(placements.begin(), placements.end(), [&](const Placement& placement) {
    return placement.parameter == parameter && placement.offset < end &&
           placement.offset + placement.numel > begin;
  });
}

constexpr int64_t kBlock = kNormBlock * 256;

// Adds the chunks of `interval`, whose elements `view` holds.
uint64_t hash_interval(const EngineContext& context, const Interval& interval, TensorView view,
                       std::vector<std::byte>& scratch) {
  const std::string& name = context.sharding.spec(interval.parameter).name;
  const uint64_t name_hash = XXH3_64bits(name.data(), name.size());
  uint64_t sum = 0;
  Stream& stream = context.device.inline_stream();
  for (int64_t at = 0; at < view.numel; at += kBlock) {
    const TensorView block = view.slice(at, std::min(kBlock, view.numel - at));
    scratch.resize(block.nbytes());
    context.device.download(stream, block, scratch.data());
    stream.synchronize();
    for (int64_t chunk = 0; chunk < block.numel; chunk += kNormBlock) {
      const TensorView part{scratch.data(), block.numel, block.dtype};
      const TensorView bytes = part.slice(chunk, std::min(kNormBlock, block.numel - chunk));
      const auto index = static_cast<uint64_t>((interval.begin + at + chunk) / kNormBlock);
      sum += XXH3_64bits_withSeed(bytes.data, bytes.nbytes(), name_hash + index);
    }
  }
  return sum;
}

// 64-bit sums travel as two halves, so that no int64 addition overflows.
std::array<int64_t, 2> halves(uint64_t value) {
  return {static_cast<int64_t>(value & 0xffffffffU), static_cast<int64_t>(value >> 32)};
}

constexpr std::string_view kLabel = "parameter hash";

// Throws CommError unless all ranks of `comm` have the same hash.
void check_same(const EngineContext& context, Communicator& comm, uint64_t hash) {
  const auto [low, high] = halves(hash);
  std::array<int64_t, 4> extremes = {low, -low, high, -high};
  Agreement(comm, context.device.inline_stream()).reduce(extremes, ReduceOp::max, kLabel);
  if (extremes[0] == -extremes[1] && extremes[2] == -extremes[3]) return;
  fail<CommError>(
      "rank {}: full parameters differ between ranks; a replica was written by this "
      "program or a collective failed silently",
      context.sharding.place.rank);
}

}  // namespace

OptimizerStates::OptimizerStates(const EngineContext& context, std::span<const Bucket> buckets,
                                 ChunkStorage& storage)
    : context_(context), buckets_(buckets), storage_(storage) {}

void OptimizerStates::fill(const Bucket& bucket, const Chunk& chunk, TensorView master,
                           const Fill& fill) {
  Device& device = context_.device;
  Stream& stream = device.inline_stream();
  Device& host = device.host();
  const TensorView param = storage_.acquire_params(bucket, chunk, Content::overwritten);
  const int64_t from = bucket.stored.begin + chunk.begin;
  for (const Interval& part : bucket.layout.intervals(from, from + chunk.numel())) {
    for (int64_t at = 0; at < part.numel; at += fill.staging.numel) {
      const int64_t count = std::min(fill.staging.numel, part.numel - at);
      const int64_t offset = part.offset - from + at;
      const std::span<float> values = fill.host.first(static_cast<size_t>(count));
      fill.source(part.parameter, part.begin + at, values);
      const TensorView block = fill.staging.slice(0, count);
      device.upload(stream, values.data(), block);
      const auto write = [&](TensorView whole, bool on_host) {
        const TensorView out = whole.slice(offset, count);
        if (on_host) {
          host.cast(host.inline_stream(), view_of(values), out);
        } else {
          device.cast(stream, block, out);
        }
      };
      if (master.data != nullptr) write(master, chunk.on_host);
      write(param, bucket.moves_params);
      stream.synchronize();
    }
  }
  storage_.release_params(bucket, chunk, true);
}

void OptimizerStates::initialize(const Engine::FillFunction& source,
                                 const GatherUpdated& gather_updated) {
  constexpr int64_t kNumel = 1 << 18;
  std::vector<float> host(kNumel);
  const Buffer buffer = context_.device.allocate(kNumel * sizeof(float), MemoryCategory::other);
  const Fill fill_with{source, host, view_of(buffer, DType::fp32, kNumel)};
  for (const Bucket& bucket : buckets_) {
    if (bucket.plan.dtype) continue;  // never cast, and so not filled from fp32
    for (const Chunk& chunk : bucket.chunks) {
      if (!bucket.plan.trainable) {
        fill(bucket, chunk, {}, fill_with);
        continue;
      }
      const ActiveChunk active = storage_.acquire(bucket, chunk);
      if (chunk.on_host) storage_.pipeline()->synchronize();
      fill(bucket, chunk, active.states[0], fill_with);
      storage_.release(active, 1);  // the master
    }
    gather_updated(bucket);
  }
}

StateInterval OptimizerStates::interval_of(const Bucket& bucket, const Chunk& chunk,
                                           const Interval& part, const ChunkViews& views) const {
  StateInterval interval{
      .parameter = part.parameter, .begin = part.begin, .numel = part.numel, .owned = bucket.owned};
  const int64_t in_chunk = part.offset - bucket.stored.begin - chunk.begin;
  if (views.param.data != nullptr) interval.param = views.param.slice(in_chunk, part.numel);
  interval.param_on_host = bucket.moves_params;
  if (!bucket.plan.trainable) return interval;
  interval.on_host = chunk.on_host;
  interval.grad = bucket.reduced_part(in_chunk + chunk.begin, part.numel);
  for (size_t i = 0; i < views.states.size(); ++i) {
    const TensorView view = storage_.part_of(bucket, views.states[i], i, in_chunk, part.numel);
    if (i == 0) {
      interval.master = view;
    } else {
      interval.states.push_back(view);
    }
  }
  return interval;
}

void OptimizerStates::visit_chunk(const Bucket& bucket, const Chunk& chunk, const ChunkViews& views,
                                  const EngineStates::StateVisit& visit,
                                  std::optional<ParameterId> only) const {
  for (const Interval& part : bucket.shard_intervals(chunk.begin, chunk.numel())) {
    if (!only || part.parameter == *only) visit(interval_of(bucket, chunk, part, views));
  }
}

std::vector<StateInterval> OptimizerStates::intervals(Parts parts,
                                                      std::optional<ParameterId> only) {
  if (storage_.pipeline() != nullptr) storage_.pipeline()->synchronize();
  std::vector<StateInterval> result;
  const auto keep = [&](const StateInterval& interval) { result.push_back(interval); };
  for (const Bucket& bucket : buckets_) {
    for (const Chunk& chunk : bucket.chunks) {
      if (only && !has_part_of(bucket, chunk, *only)) continue;
      ChunkViews views;
      if (!bucket.moves_params) {
        views.param = bucket.params_of(chunk);
      } else if (parts == Parts::all) {
        views.param = storage_.moved_parameters()->stored(bucket, chunk);
      }
      if (bucket.plan.trainable) views.states = storage_.stored_states(bucket, chunk);
      visit_chunk(bucket, chunk, views, keep, only);
    }
  }
  std::sort(result.begin(), result.end(), [](const StateInterval& a, const StateInterval& b) {
    return std::pair(a.parameter, a.begin) < std::pair(b.parameter, b.begin);
  });
  return result;
}

void OptimizerStates::update_by_caller(Stream& comm_stream, float grad_scale,
                                       const Engine::ShardUpdate& update) {
  // Parameters are cast from masters afterwards; they may be in a file.
  std::vector<StateInterval> updated = intervals(Parts::states);
  std::erase_if(updated, [](const StateInterval& part) { return part.grad.data == nullptr; });
  for (const StateInterval& part : updated) {
    Device& home = part.on_host ? context_.device.host() : context_.device;
    home.scale(home.inline_stream(), part.grad, grad_scale);
  }
  std::exception_ptr own;
  const auto note_error = [&] {
    try {
      update(updated);
    } catch (...) {
      own = std::current_exception();
      throw;
    }
  };
  try {
    Agreement(context_.groups.job(), comm_stream).run("the caller's optimizer", note_error);
  } catch (...) {
    if (own) std::rethrow_exception(own);
    throw;
  }
}

void OptimizerStates::visit(StateAccess access, const EngineStates::StateVisit& visit) {
  const Content content = access == StateAccess::shape ? Content::overwritten : Content::needed;
  const bool changed = access == StateAccess::write;
  if (storage_.pipeline() != nullptr) storage_.pipeline()->synchronize();
  const auto visit_with = [&](const Bucket& bucket, const Chunk& chunk,
                              std::vector<TensorView> states) {
    const TensorView param = storage_.acquire_params(bucket, chunk, content);
    visit_chunk(bucket, chunk, {param, std::move(states)}, visit);
    storage_.release_params(bucket, chunk, changed);
  };
  for (const Bucket& bucket : buckets_) {
    for (const Chunk& chunk : bucket.chunks) {
      if (!bucket.plan.trainable) {
        visit_with(bucket, chunk, {});
        continue;
      }
      const ActiveChunk active = storage_.acquire(bucket, chunk, content);
      active.stream.synchronize();
      visit_with(bucket, chunk, active.states);
      storage_.release(active, changed ? std::numeric_limits<size_t>::max() : 0);
    }
  }
}

// At stage 0 every rank stores all states, but writes only the shard that it owns.
void OptimizerStates::gather_written(const ActiveChunk& active, Stream& comm_stream) {
  const Bucket& bucket = active.bucket;
  for (size_t i = 0; i < active.states.size(); ++i) {
    const TensorView all = active.states[i];
    const TensorView own =
        storage_.part_of(bucket, all, i, bucket.owned_begin, bucket.layout.shard_numel);
    context_.groups.all(bucket.plan.ranks)
        .all_gather(own, all, Sync::collective, comm_stream, bucket.label);
  }
  active.stream.wait(comm_stream.record());
}

void OptimizerStates::refresh(const Bucket& bucket, Stream& comm_stream) {
  for (const Chunk& chunk : bucket.chunks) {
    const ActiveChunk active = storage_.acquire(bucket, chunk);
    if (gathers_states(bucket)) gather_written(active, comm_stream);
    const TensorView params = storage_.open_params(active);
    const TensorView master = active.states[0];
    if (master.data != params.data) active.device.cast(active.stream, master, params);
    storage_.close_params(active, params);
    if (chunk.on_host) comm_stream.wait(storage_.params_stored(bucket));
    storage_.release(active, 0);
  }
}

void OptimizerStates::refresh_from_masters(Stream& comm_stream,
                                           const GatherUpdated& gather_updated) {
  storage_.accept_changes();
  // The caller may have written to masters on the inline stream.
  comm_stream.wait(context_.device.inline_stream().record());
  for (const Bucket& bucket : buckets_) {
    if (bucket.plan.trainable) refresh(bucket, comm_stream);
    if (!gathers_states(bucket)) gather_updated(bucket);
  }
}

uint64_t OptimizerStates::hash_parameters() {
  std::vector<std::byte> scratch;
  uint64_t own = 0;  // this rank's shards
  // All that this rank holds in full, by those who share it.
  std::vector<uint64_t> replicas(context_.sharding.parts.size() + 1);
  for (const Bucket& bucket : buckets_) {
    for (const Chunk& chunk : bucket.chunks) {
      const TensorView params = storage_.acquire_params(bucket, chunk, Content::needed);
      const int64_t from = bucket.stored.begin + chunk.begin;
      for (const Interval& part : bucket.shard_intervals(chunk.begin, chunk.numel())) {
        own += hash_interval(context_, part, params.slice(part.offset - from, part.numel), scratch);
      }
      storage_.release_params(bucket, chunk, false);
    }
    if (bucket.plan.shard_params) continue;
    for (const Interval& part : bucket.layout.intervals(0, bucket.layout.padded_numel())) {
      replicas[static_cast<size_t>(bucket.plan.ranks)] +=
          hash_interval(context_, part, bucket.params.full.slice(part.offset, part.numel), scratch);
    }
  }
  std::array<int64_t, 2> sum = halves(context_.sharding.place.replica() == 0 ? own : 0);
  Agreement(context_.groups.comm, context_.device.inline_stream())
      .reduce(sum, ReduceOp::sum, kLabel);
  for (int ranks = 0; ranks < static_cast<int>(replicas.size()); ++ranks) {
    check_same(context_, context_.groups.all(ranks), replicas[static_cast<size_t>(ranks)]);
  }
  if (context_.groups.replica_group) check_same(context_, *context_.groups.replica_group, own);
  return static_cast<uint64_t>(sum[0]) + (static_cast<uint64_t>(sum[1]) << 32);
}

}  // namespace zerorun
