#include "zero/parameters/parameter_hash.h"

#include <xxhash.h>

#include <algorithm>
#include <array>

#include "core/check.h"

namespace zerorun {

namespace {

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

void all_reduce(Communicator& comm, Stream& stream, std::span<int64_t> values, ReduceOp op) {
  const TensorView view = view_of(values);
  comm.all_reduce(view, view, op, Output::overwrite, stream, "parameter hash").synchronize();
}

// Throws CommError unless all ranks of `comm` have the same hash.
void check_same(const EngineContext& context, Communicator& comm, uint64_t hash) {
  const auto [low, high] = halves(hash);
  std::array<int64_t, 4> extremes = {low, -low, high, -high};
  all_reduce(comm, context.device.inline_stream(), extremes, ReduceOp::max);
  if (extremes[0] == -extremes[1] && extremes[2] == -extremes[3]) return;
  fail<CommError>(
      "rank {}: full parameters differ between ranks; a replica was written by this "
      "program or a collective failed silently",
      context.sharding.place.rank);
}

}  // namespace

uint64_t hash_parameters(const EngineContext& context, std::span<const Bucket> buckets,
                         ChunkStorage& storage) {
  std::vector<std::byte> scratch;
  uint64_t own = 0;  // this rank's shards
  // All that this rank holds in full, by those who share it.
  std::vector<uint64_t> replicas(context.sharding.parts.size() + 1);
  for (const Bucket& bucket : buckets) {
    for (const Chunk& chunk : bucket.chunks) {
      const TensorView params = storage.acquire_params(bucket, chunk, Content::needed);
      const int64_t from = bucket.stored.begin + chunk.begin;
      for (const Interval& part : bucket.shard_intervals(chunk.begin, chunk.numel())) {
        own += hash_interval(context, part, params.slice(part.offset - from, part.numel), scratch);
      }
      storage.release_params(bucket, chunk, false);
    }
    if (bucket.plan.shard_params) continue;
    for (const Interval& part : bucket.layout.intervals(0, bucket.layout.padded_numel())) {
      replicas[static_cast<size_t>(bucket.plan.ranks)] +=
          hash_interval(context, part, bucket.params.full.slice(part.offset, part.numel), scratch);
    }
  }
  std::array<int64_t, 2> sum = halves(context.sharding.place.replica() == 0 ? own : 0);
  all_reduce(context.groups.comm, context.device.inline_stream(), sum, ReduceOp::sum);
  for (int ranks = 0; ranks < static_cast<int>(replicas.size()); ++ranks) {
    check_same(context, context.groups.all(ranks), replicas[static_cast<size_t>(ranks)]);
  }
  if (context.groups.replica_group) check_same(context, *context.groups.replica_group, own);
  return static_cast<uint64_t>(sum[0]) + (static_cast<uint64_t>(sum[1]) << 32);
}

}  // namespace zerorun
