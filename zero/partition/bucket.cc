#include "zero/partition/bucket.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/check.h"

namespace zerorun {

namespace {

// Elements of offloaded states that are moved and updated at once, at most: enough to keep copies
// and disks busy, few enough that staging stays small.
constexpr int64_t kMaxChunkNumel = int64_t{1} << 22;
// Chunks of a rank, about at most: more only cost time. A rank with more than 2^38 elements has
// larger ones, and so has a plan for one that no host could hold.
constexpr int64_t kMaxChunks = int64_t{1} << 16;

int64_t host_chunk_numel(const Sharding& sharding, std::span<const int64_t> numels) {
  int64_t numel = std::min(sharding.offload.sub_group_size, kMaxChunkNumel);
  if (sharding.moves_parameters()) numel = std::min(numel, sharding.offload.param.buffer_size);
  const int64_t stored = std::accumulate(numels.begin(), numels.end(), int64_t{0}) /
                         (sharding.policy.shard_state ? sharding.place.shard_ranks : 1);
  return std::max({numel, kNormBlock, stored / kMaxChunks});
}

StoredRange stored_range(const Sharding& sharding, const BucketPlan& plan,
                         const BucketLayout& layout) {
  const int shard = sharding.place_of(plan.ranks).shard_rank();
  StoredRange stored{.numel = layout.padded_numel()};
  if (sharding.policy.shard_state) {
    stored = {.begin = shard * layout.shard_numel, .numel = layout.shard_numel};
  }
  stored.host_from = stored.numel;
  stored.offloaded = plan.trainable && sharding.offloads_states();
  if (!stored.offloaded) return stored;
  const double kept = 1.0 - sharding.offload.optimizer.ratio;
  const auto on_device = static_cast<int64_t>(static_cast<double>(stored.numel) * kept);
  const int64_t cut = cut_near(layout, stored.begin + on_device, stored.begin);
  stored.host_from = on_device == 0 ? 0 : std::min(stored.numel, cut - stored.begin);
  return stored;
}

// Below stage 3 the updated parameters of a step are gathered, which excludes frozen ones; at stage
// 3 small parameters that stay gathered are sent as they are, and so are those of a dtype that the
// decoded values would have to be cast to.
bool quantizes_gathers(const ZeroConfig& zero, const BucketPlan& plan) {
  if (!plan.quantized || plan.dtype) return false;
  if (!plan.shard_params) return zero.quantized_weights && zero.stage < 3 && plan.trainable;
  return zero.quantized_weights || (zero.quantized_nontrainable_weights && !plan.trainable);
}

std::vector<Chunk> chunks_of(const Bucket& bucket, int64_t host_numel) {
  const StoredRange& stored = bucket.stored;
  ChunkSizes sizes{.device = stored.numel, .host = host_numel};
  if (bucket.moves_params) sizes.device = sizes.host;
  return cut_chunks(bucket.layout, stored.begin, stored.numel, stored.host_from, sizes);
}

// Numbers chunks in the stores that keep them. Parameters go to memory while they fit into
// `max_in_cpu` elements, or all do.
class ChunkNumbers {
 public:
  explicit ChunkNumbers(const OffloadParamConfig& offload) : offload_(offload) {}

  void number(const Bucket& bucket, Chunk& chunk) {
    if (bucket.plan.trainable) chunk.state_index = chunk.on_host ? host_++ : device_++;
    if (!bucket.moves_params) return;
    chunk.param_in_file = offload_.device == OffloadDevice::nvme &&
                          memory_numel_ + chunk.numel() > offload_.max_in_cpu;
    if (!chunk.param_in_file) memory_numel_ += chunk.numel();
    chunk.param_index = chunk.param_in_file ? file_++ : memory_++;
  }

 private:
  const OffloadParamConfig& offload_;
  int device_ = 0;
  int host_ = 0;
  int memory_ = 0;
  int file_ = 0;
  int64_t memory_numel_ = 0;
};

}  // namespace

std::vector<Bucket> make_buckets(const Sharding& sharding, std::span<const int64_t> numels,
                                 std::span<const ModuleId> modules) {
  std::vector<Bucket> buckets;
  ChunkNumbers numbers(sharding.offload.param);
  const int64_t host_numel = host_chunk_numel(sharding, numels);
  for (BucketPlan& plan : plan_buckets(sharding.specs, numels, modules, sharding.zero)) {
    Bucket& bucket = buckets.emplace_back();
    bucket.index = static_cast<int>(buckets.size()) - 1;
    const RankPlace& place = sharding.place_of(plan.ranks);
    bucket.quantized_gather = quantizes_gathers(sharding.zero, plan);
    // No block of codes has elements of two parameters, so writing one leaves the others' values.
    bucket.layout = lay_out(plan.parameters, place.shard_ranks,
                            bucket.quantized_gather ? kNormBlock : sharding.parameter_alignment);
    bucket.dtype = plan.dtype.value_or(sharding.precision.param_dtype);
    const auto name = [&](const SizedParameter& parameter) -> const std::string& {
      return sharding.spec(parameter.parameter).name;
    };
    bucket.label = fmt::format("bucket {} ({} .. {})", bucket.index, name(plan.parameters.front()),
                               name(plan.parameters.back()));
    bucket.owned_begin = place.shard_rank() * bucket.layout.shard_numel;
    bucket.owned = place.replica() == 0;
    bucket.stored = stored_range(sharding, plan, bucket.layout);
    bucket.moves_params = sharding.moves_parameters() && plan.shard_params;
    bucket.plan = std::move(plan);
    bucket.chunks = chunks_of(bucket, host_numel);
    for (Chunk& chunk : bucket.chunks) numbers.number(bucket, chunk);
  }
  return buckets;
}

Buckets::Buckets(std::vector<Bucket> buckets, size_t parameters)
    : buckets_(std::move(buckets)), places_(parameters) {
  for (const Bucket& bucket : buckets_) {
    for (const auto& [id, offset, numel] : bucket.layout.placements) {
      places_[static_cast<size_t>(id)] = {bucket.index, offset, numel};
    }
  }
}

std::vector<Interval> Bucket::shard_intervals(int64_t begin, int64_t numel) const {
  const int64_t first = std::max(stored.begin + begin, owned_begin);
  const int64_t last = std::min(stored.begin + begin + numel, owned_begin + layout.shard_numel);
  return layout.intervals(first, last);  // none where they do not meet
}

void Bucket::clear_padding(int64_t begin, TensorView part, Device& device, Stream& stream) const {
  int64_t end = begin;  // of the parameter before
  const auto clear_to = [&](int64_t offset) {
    if (offset > end) device.fill(stream, part.slice(end - begin, offset - end), 0.0F);
  };
  for (const Interval& interval : layout.intervals(begin, begin + part.numel)) {
    clear_to(interval.offset);
    end = interval.offset + interval.numel;
  }
  clear_to(begin + part.numel);
}

}  // namespace zerorun
