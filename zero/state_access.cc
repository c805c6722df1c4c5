// Reading and writing the states of a ShardedOptimizer between steps.
#include <algorithm>
#include <utility>

#include "core/check.h"
#include "zero/sharded_optimizer.h"

namespace zerorun {

void ShardedOptimizer::fill(const Bucket& bucket, const StatePiece& piece,
                            std::span<const TensorView> views, const Engine::FillFunction& source,
                            std::span<float> host, TensorView staging) {
  Device& device = context_.device;
  Stream& stream = device.inline_stream();
  const int64_t from = bucket.held_from + piece.begin;
  const TensorView param = param_of(bucket, piece);
  for (const Interval& part : bucket.layout.intervals(from, from + piece.numel())) {
    for (int64_t at = 0; at < part.numel; at += staging.numel) {
      const int64_t count = std::min(staging.numel, part.numel - at);
      const int64_t offset = part.offset - from + at;
      source(part.parameter, part.begin + at, host.first(static_cast<size_t>(count)));
      const TensorView block = staging.slice(0, count);
      device.upload(stream, host.data(), block);
      if (piece.on_host) {
        device.host().cast(device.host().inline_stream(), view_of(host).slice(0, count),
                           views[0].slice(offset, count));
      } else if (!views.empty()) {
        device.cast(stream, block, views[0].slice(offset, count));
      }
      device.cast(stream, block, param.slice(offset, count));
      stream.synchronize();
    }
  }
}

void ShardedOptimizer::initialize(const Engine::FillFunction& source, const Publish& publish) {
  constexpr int64_t kBlock = 1 << 18;
  std::vector<float> host(kBlock);
  const Buffer buffer = context_.device.allocate(kBlock * sizeof(float), MemoryCategory::other);
  const TensorView staging = view_of(buffer, DType::fp32, kBlock);
  for (const Bucket& bucket : buckets_) {
    if (bucket.pieces.empty()) {
      fill(bucket, {.begin = 0, .end = bucket.held_numel}, {}, source, host, staging);
    }
    for (const StatePiece& piece : bucket.pieces) {
      const Work work = begin(bucket, piece);
      if (piece.on_host) lane_->synchronize();
      fill(bucket, piece, work.views, source, host, staging);
      store_of(piece).release(piece.index, work.stream, 1);  // the master
    }
    publish(bucket);
  }
}

StateInterval ShardedOptimizer::interval_of(const Bucket& bucket, const StatePiece& piece,
                                            const Interval& part,
                                            std::span<const TensorView> views) const {
  StateInterval interval{.parameter = part.parameter, .begin = part.begin, .numel = part.numel};
  const int64_t in_shard = part.offset - context_.rank * bucket.layout.shard_numel;
  interval.param = bucket.param_shard.slice(in_shard, part.numel);
  interval.on_host = piece.on_host;
  if (!bucket.plan.trainable) return interval;
  const int64_t in_held = part.offset - bucket.held_from;
  interval.grad = bucket.reduced_part(in_held, part.numel);
  for (size_t i = 0; i < views.size(); ++i) {
    const TensorView view = part_of(bucket, views[i], i, in_held - piece.begin, part.numel);
    if (i == 0) {
      interval.master = view;
    } else {
      interval.states.push_back(view);
    }
  }
  return interval;
}

std::vector<StateInterval> ShardedOptimizer::intervals() {
  if (lane_ != nullptr) lane_->synchronize();
  std::vector<StateInterval> result;
  for (const Bucket& bucket : buckets_) {
    const int64_t own = context_.rank * bucket.layout.shard_numel;
    const auto add = [&](const StatePiece& piece, std::span<const TensorView> views) {
      const int64_t begin = std::max(own, bucket.held_from + piece.begin);
      const int64_t end = std::min(own + bucket.layout.shard_numel, bucket.held_from + piece.end);
      for (const Interval& part : bucket.layout.intervals(begin, end)) {
        result.push_back(interval_of(bucket, piece, part, views));
      }
    };
    if (bucket.pieces.empty()) add({.begin = 0, .end = bucket.held_numel}, {});
    for (const StatePiece& piece : bucket.pieces) {
      add(piece, with_master(bucket, piece, store_of(piece).rest(piece.index)));
    }
  }
  std::sort(result.begin(), result.end(), [](const StateInterval& a, const StateInterval& b) {
    return std::pair(a.parameter, a.begin) < std::pair(b.parameter, b.begin);
  });
  return result;
}

void ShardedOptimizer::recast(Stream& comm_stream, const Publish& publish) {
  if (stores_.host) stores_.host->accept_changes();
  for (const Bucket& bucket : buckets_) {
    for (const StatePiece& piece : bucket.pieces) {
      Work work = begin(bucket, piece);
      const int64_t own = context_.rank * bucket.layout.shard_numel;
      for (size_t i = 0; i < work.views.size() && !context_.policy.shard_state; ++i) {
        const TensorView part = part_of(bucket, work.views[i], i, own, bucket.layout.shard_numel);
        context_.comm.all_gather(part, work.views[i], Sync::collective, comm_stream, bucket.label)
            .synchronize();
      }
      if (piece.on_host) work.param = lane_->outgoing(piece.numel(), context_.param_dtype);
      if (work.views[0].data != work.param.data) {
        work.device.cast(work.stream, work.views[0], work.param);
      }
      if (piece.on_host) comm_stream.wait(lane_->send(work.param, param_of(bucket, piece)));
      store_of(piece).release(piece.index, work.stream, 0);
    }
    publish(bucket);
  }
}

}  // namespace zerorun
