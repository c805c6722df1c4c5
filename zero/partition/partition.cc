#include "zero/partition/partition.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "zero/partition/sharding.h"

namespace zerorun {

namespace {

// Parameters start on cache lines (32 elements of 16 bits).
constexpr int64_t kParameterAlignment = 32;
// A bucket never holds more than this part of the model unless one parameter does: reduction can
// only overlap with backward, and gradients can only be freed, when there are several buckets.
constexpr int64_t kMinBuckets = 8;
// A bucket may hold so many matrices of Muon even so: of a single one, all ranks but its owner send
// their parts (MuonRound), while of two equal ones on two ranks each owner has all that it needs.
constexpr int64_t kMinMatrices = 2;

int64_t align_up(int64_t value, int64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

// Places the parameters in order; returns the end, which may exceed the shards' total.
int64_t place(std::span<const SizedParameter> parameters, int64_t shard_numel, int64_t alignment,
              std::vector<Placement>& placements) {
  placements.clear();
  int64_t cursor = 0;
  for (const SizedParameter& parameter : parameters) {
    cursor = align_up(cursor, alignment);
    const int64_t next_cut = align_up(cursor + 1, shard_numel);
    if (cursor + parameter.numel > next_cut) cursor = align_up(cursor, kNormBlock);
    placements.push_back({parameter.parameter, cursor, parameter.numel});
    cursor += parameter.numel;
  }
  return cursor;
}

bool stays_gathered(int64_t numel, const ZeroConfig& zero, int64_t& persistent_total) {
  if (numel > zero.param_persistence_threshold) return false;
  if (persistent_total + numel > zero.model_persistence_threshold) return false;
  persistent_total += numel;
  return true;
}

bool is_quantized(const ParameterSpec& spec, const ZeroConfig& zero) {
  return spec.shape.size() > 1 && (zero.quantized_gradients || zero.quantized_weights ||
                                   (zero.quantized_nontrainable_weights && !spec.trainable));
}

// Fills buckets from the last parameter to the first.
void fill_replicated(std::span<const SizedParameter> parameters, const BucketPlan& kind,
                     int64_t cap, std::vector<BucketPlan>& plans) {
  int64_t size = 0;
  bool open = false;
  for (size_t i = parameters.size(); i-- > 0;) {
    if (!open || size + parameters[i].numel > cap) {
      plans.push_back(kind);
      size = 0;
      open = true;
    }
    std::vector<SizedParameter>& members = plans.back().parameters;
    members.insert(members.begin(), parameters[i]);
    size += parameters[i].numel;
  }
}

}  // namespace

int64_t BucketLayout::numel() const {
  int64_t total = 0;
  for (const Placement& placement : placements) total += placement.numel;
  return total;
}

std::vector<Interval> BucketLayout::intervals(int64_t begin, int64_t end) const {
  std::vector<Interval> result;
  for (const Placement& placement : placements) {
    const int64_t first = std::max(begin, placement.offset);
    const int64_t last = std::min(end, placement.offset + placement.numel);
    if (first < last) {
      result.push_back({placement.parameter, first - placement.offset, first, last - first});
    }
  }
  return result;
}

BucketLayout lay_out(std::span<const SizedParameter> parameters, int shards, int64_t alignment) {
  alignment = std::max(alignment, kParameterAlignment);
  BucketLayout layout;
  layout.shards = shards;
  int64_t total = 0;
  for (const SizedParameter& parameter : parameters) {
    total += align_up(parameter.numel, alignment);
  }
  int64_t shard_numel = std::max(kNormBlock, align_up((total + shards - 1) / shards, kNormBlock));
  // Each of the cuts costs less than one chunk of padding, so this ends within a few rounds.
  while (place(parameters, shard_numel, alignment, layout.placements) > shard_numel * shards) {
    shard_numel += kNormBlock;
  }
  layout.shard_numel = shard_numel;
  return layout;
}

std::vector<BucketPlan> plan_buckets(std::span<const ParameterSpec> specs,
                                     std::span<const int64_t> numels,
                                     std::span<const ModuleId> modules, const ZeroConfig& zero) {
  using Kind = std::tuple<bool, bool, bool, int, std::optional<DType>>;  // as in BucketPlan
  std::map<std::pair<ModuleId, Kind>, BucketPlan> sharded;
  std::map<Kind, std::vector<SizedParameter>> replicated;
  int64_t persistent_total = 0;
  int64_t largest = 0;
  int64_t largest_matrix = 0;
  int64_t total = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (!specs[i].alias_of.empty() || specs[i].ranks == kElsewhere) continue;
    const SizedParameter parameter{static_cast<ParameterId>(i), numels[i]};
    const bool use_muon = specs[i].trainable && specs[i].use_muon;
    const Kind kind = {specs[i].trainable, use_muon, is_quantized(specs[i], zero), specs[i].ranks,
                       specs[i].dtype};
    if (stage_policy(zero.stage).shard_params &&
        !stays_gathered(parameter.numel, zero, persistent_total)) {
      BucketPlan& plan = sharded[{modules[i], kind}];
      std::tie(plan.trainable, plan.use_muon, plan.quantized, plan.ranks, plan.dtype) = kind;
      plan.shard_params = true;
      plan.module = modules[i];
      plan.parameters.push_back(parameter);
    } else {
      replicated[kind].push_back(parameter);
      largest = std::max(largest, parameter.numel);
      if (use_muon) largest_matrix = std::max(largest_matrix, parameter.numel);
      total += parameter.numel;
    }
  }
  const auto cap = [&](int64_t least) {
    return std::min(zero.reduce_bucket_size, std::max(least, total / kMinBuckets));
  };
  std::vector<BucketPlan> plans;
  plans.reserve(sharded.size() + replicated.size());
  for (auto& [key, plan] : sharded) plans.push_back(std::move(plan));
  for (const auto& [kind, parameters] : replicated) {
    const auto [trainable, use_muon, quantized, ranks, dtype] = kind;
    const int64_t least = use_muon ? std::max(largest, kMinMatrices * largest_matrix) : largest;
    const BucketPlan empty{.trainable = trainable,
                           .use_muon = use_muon,
                           .ranks = ranks,
                           .dtype = dtype,
                           .quantized = quantized};
    fill_replicated(parameters, empty, cap(least), plans);
  }
  // Backward completes a bucket with its first parameter.
  std::stable_sort(plans.begin(), plans.end(), [](const BucketPlan& a, const BucketPlan& b) {
    return a.parameters.front().parameter > b.parameters.front().parameter;
  });
  return plans;
}

int64_t cut_near(const BucketLayout& layout, int64_t at, int64_t after) {
  if (at >= layout.padded_numel()) return layout.padded_numel();
  for (const Placement& placement : layout.placements) {
    if (placement.numel == 0) continue;
    if (at <= placement.offset) return placement.offset;  // in the padding before it
    if (at >= placement.offset + placement.numel) continue;
    const int64_t cut = placement.offset + (at - placement.offset) / kNormBlock * kNormBlock;
    if (cut > after) return cut;
    if (cut + kNormBlock < placement.offset + placement.numel) return cut + kNormBlock;
  }
  return layout.padded_numel();
}

std::vector<Chunk> cut_chunks(const BucketLayout& layout, int64_t from, int64_t numel,
                              int64_t host_from, ChunkSizes sizes) {
  std::vector<Chunk> chunks;
  const auto cut = [&](int64_t begin, int64_t last, int64_t chunk_numel, bool on_host) {
    while (begin < last) {
      int64_t end = last;
      if (chunk_numel < last - begin) {
        end = std::min(last, cut_near(layout, from + begin + chunk_numel, from + begin) - from);
      }
      const auto index = static_cast<int>(chunks.size());
      chunks.push_back({.begin = begin, .end = end, .index = index, .on_host = on_host});
      begin = end;
    }
  };
  cut(0, host_from, sizes.device, false);
  cut(host_from, numel, sizes.host, true);
  return chunks;
}

}  // namespace zerorun
