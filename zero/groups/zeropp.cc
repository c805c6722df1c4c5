#include "zero/groups/zeropp.h"

#include "core/check.h"
#include "zero/partition/sharding.h"

namespace zerorun {

std::vector<std::string_view> zeropp_keys(const ZeroConfig& zero) {
  std::vector<std::string_view> keys;
  const auto add = [&](bool asked, std::string_view key) {
    if (asked) keys.push_back(key);
  };
  add(zero.hpz_partition_size != 1, "/zero_optimization/zero_hpz_partition_size");
  add(zero.quantized_weights, "/zero_optimization/zero_quantized_weights");
  add(zero.quantized_nontrainable_weights,
      "/zero_optimization/zero_quantized_nontrainable_weights");
  add(zero.quantized_gradients, "/zero_optimization/zero_quantized_gradients");
  add(zero.loco.has_value(), "/zero_optimization/zeropp_loco_param");
  return keys;
}

void check_quantized_groups(int64_t groups, int64_t ranks) {
  if (groups == 1) return;
  fail<ConfigError>(
      "/zero_optimization/zero_quantized_gradients is true, but {} has {} groups of {} ranks, "
      "which "
      "add their sums as they are; leave one of them out",
      kShardGroupKey, groups, ranks);
}

std::vector<std::string_view> resolve_groups(ZeroConfig& zero, int world_size, int ranks_per_host) {
  overlap_between_hosts(zero, world_size, ranks_per_host);
  if (zero.shard_group_size == kRanksOfHost) {
    zero.shard_group_size = zero.stage > 0 ? ranks_per_host : 0;
  }
  const int64_t shards = zero.shard_group_size > 0 ? zero.shard_group_size : world_size;
  const bool one_host = world_size <= ranks_per_host;
  if (one_host || (shards <= ranks_per_host && ranks_per_host % shards == 0)) {
    std::vector<std::string_view> idle = zeropp_keys(zero);
    zero = without_zeropp(zero);
    return idle;
  }
  if (zero.hpz_partition_size == kRanksOfHost) zero.hpz_partition_size = ranks_per_host;
  if (zero.quantized_gradients) check_quantized_groups(world_size / shards, shards);
  return {};
}

void overlap_between_hosts(ZeroConfig& zero, int world_size, int ranks_per_host) {
  if (!zero.overlap_comm && ranks_per_host < world_size) zero.overlap_comm = true;
}

ZeroConfig without_zeropp(ZeroConfig zero) {
  const ZeroConfig none;
  zero.hpz_partition_size = none.hpz_partition_size;
  zero.quantized_weights = none.quantized_weights;
  zero.quantized_nontrainable_weights = none.quantized_nontrainable_weights;
  zero.quantized_gradients = none.quantized_gradients;
  zero.loco = none.loco;
  return zero;
}

}  // namespace zerorun
