// Reading and writing the states of a ShardedOptimizer between steps.
#include <algorithm>
#include <limits>
#include <utility>

#include "core/check.h"
#include "zero/sharded_optimizer.h"

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

}  // namespace

void ShardedOptimizer::fill(const Bucket& bucket, const Chunk& chunk,
                            std::span<const TensorView> views, const Fill& fill) {
  Device& device = context_.device;
  Stream& stream = device.inline_stream();
  Device& host = device.host();
  const bool moves = bucket.moves_params;
  const TensorView param =
      moves ? parameters_->acquire(bucket, chunk, host.inline_stream(), Content::overwritten)
            : param_of(bucket, chunk);
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
      if (!views.empty()) write(views[0], chunk.on_host);
      write(param, moves);
      stream.synchronize();
    }
  }
  if (moves) parameters_->release(bucket, chunk, host.inline_stream(), true);
}

void ShardedOptimizer::initialize(const Engine::FillFunction& source, const Publish& publish) {
  constexpr int64_t kNumel = 1 << 18;
  std::vector<float> host(kNumel);
  const Buffer buffer = context_.device.allocate(kNumel * sizeof(float), MemoryCategory::other);
  const Fill fill_with{source, host, view_of(buffer, DType::fp32, kNumel)};
  for (const Bucket& bucket : buckets_) {
    for (const Chunk& chunk : bucket.chunks) {
      if (!bucket.plan.trainable) {
        fill(bucket, chunk, {}, fill_with);
        continue;
      }
      const Work work = begin(bucket, chunk);
      if (chunk.on_host) pipeline_->synchronize();
      fill(bucket, chunk, work.views, fill_with);
      store_of(chunk).release(chunk.state_index, work.stream, 1);  // the master
    }
    publish(bucket);
  }
}

StateInterval ShardedOptimizer::interval_of(const Bucket& bucket, const Chunk& chunk,
                                            const Interval& part, const ChunkViews& views) const {
  StateInterval interval{.parameter = part.parameter, .begin = part.begin, .numel = part.numel};
  const int64_t in_chunk = part.offset - bucket.stored.begin - chunk.begin;
  if (views.param.data != nullptr) interval.param = views.param.slice(in_chunk, part.numel);
  interval.param_on_host = bucket.moves_params;
  if (!bucket.plan.trainable) return interval;
  interval.on_host = chunk.on_host;
  interval.grad =
      memory_.gradients(bucket).reduced_part(bucket, in_chunk + chunk.begin, part.numel);
  for (size_t i = 0; i < views.states.size(); ++i) {
    const TensorView view = part_of(bucket, views.states[i], i, in_chunk, part.numel);
    if (i == 0) {
      interval.master = view;
    } else {
      interval.states.push_back(view);
    }
  }
  return interval;
}

void ShardedOptimizer::visit_chunk(const Bucket& bucket, const Chunk& chunk,
                                   const ChunkViews& views, const Engine::StateVisit& visit,
                                   std::optional<ParameterId> only) const {
  const int64_t own = bucket.owned_begin;
  const int64_t begin = std::max(own, bucket.stored.begin + chunk.begin);
  const int64_t end = std::min(own + bucket.layout.shard_numel, bucket.stored.begin + chunk.end);
  for (const Interval& part : bucket.layout.intervals(begin, end)) {
    if (!only || part.parameter == *only) visit(interval_of(bucket, chunk, part, views));
  }
}

std::vector<StateInterval> ShardedOptimizer::intervals(Parts parts,
                                                       std::optional<ParameterId> only) {
  if (pipeline_ != nullptr) pipeline_->synchronize();
  std::vector<StateInterval> result;
  const auto keep = [&](const StateInterval& interval) { result.push_back(interval); };
  for (const Bucket& bucket : buckets_) {
    for (const Chunk& chunk : bucket.chunks) {
      if (only && !has_part_of(bucket, chunk, *only)) continue;
      ChunkViews views;
      if (!bucket.moves_params) {
        views.param = param_of(bucket, chunk);
      } else if (parts == Parts::all) {
        views.param = parameters_->rest(bucket, chunk);
      }
      if (bucket.plan.trainable) {
        views.states = with_master(bucket, chunk, store_of(chunk).rest(chunk.state_index));
      }
      visit_chunk(bucket, chunk, views, keep, only);
    }
  }
  std::sort(result.begin(), result.end(), [](const StateInterval& a, const StateInterval& b) {
    return std::pair(a.parameter, a.begin) < std::pair(b.parameter, b.begin);
  });
  return result;
}

void ShardedOptimizer::visit(StateAccess access, const Engine::StateVisit& visit) {
  const Content content = access == StateAccess::shape ? Content::overwritten : Content::needed;
  const bool changed = access == StateAccess::write;
  Stream& host = context_.device.host().inline_stream();
  if (pipeline_ != nullptr) pipeline_->synchronize();
  for (const Bucket& bucket : buckets_) {
    const bool moves = bucket.moves_params;
    const auto visit_with = [&](const Chunk& chunk, std::vector<TensorView> states) {
      const TensorView param =
          moves ? parameters_->acquire(bucket, chunk, host, content) : param_of(bucket, chunk);
      visit_chunk(bucket, chunk, {param, std::move(states)}, visit);
      if (moves) parameters_->release(bucket, chunk, host, changed);
    };
    for (const Chunk& chunk : bucket.chunks) {
      if (!bucket.plan.trainable) {
        visit_with(chunk, {});
        continue;
      }
      Work work = begin(bucket, chunk, content);
      work.stream.synchronize();
      visit_with(chunk, std::move(work.views));
      store_of(chunk).release(chunk.state_index, work.stream,
                              changed ? std::numeric_limits<size_t>::max() : 0);
    }
  }
}

void ShardedOptimizer::accept_changes() {
  if (stores_.host) stores_.host->accept_changes();
  if (parameters_ != nullptr) parameters_->accept_changes();
}

void ShardedOptimizer::recast(Stream& comm_stream, const Publish& publish) {
  accept_changes();
  // Whoever wrote to masters may have done so on the inline stream.
  comm_stream.wait(context_.device.inline_stream().record());
  for (const Bucket& bucket : buckets_) {
    for (const Chunk& chunk : bucket.chunks) {
      if (!bucket.plan.trainable) break;
      Work work = begin(bucket, chunk);
      const int64_t own = bucket.owned_begin;
      for (size_t i = 0; i < work.views.size() && !context_.policy.shard_state; ++i) {
        const TensorView part = part_of(bucket, work.views[i], i, own, bucket.layout.shard_numel);
        context_.comm.all_gather(part, work.views[i], Sync::collective, comm_stream, bucket.label)
            .synchronize();
      }
      open_param(work);
      if (work.views[0].data != work.param.data) {
        work.device.cast(work.stream, work.views[0], work.param);
      }
      close_param(work);
      if (chunk.on_host) comm_stream.wait(stepped(bucket));
      store_of(chunk).release(chunk.state_index, work.stream, 0);
    }
    publish(bucket);
  }
}

}  // namespace zerorun
