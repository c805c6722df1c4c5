#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "optim/optimizer.h"
#include "zerorun/config.h"
#include "zerorun/engine.h"

namespace zerorun {

// The names of configuration keys in errors. Either of the first two keys may have set the value.
inline constexpr std::string_view kShardGroupKey =
    "/zerorun/shard_group_size (/zero_optimization/mics_shard_size)";
inline constexpr std::string_view kSecondaryKey = "/zero_optimization/zero_hpz_partition_size";

// What a ZeRO stage shards over the ranks. This is the only difference between stages 0 to 3.
// Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
// Models", arXiv 1910.02054.
struct StagePolicy {
  bool shard_state = false;
  bool shard_grads = false;
  bool shard_params = false;
};

constexpr StagePolicy stage_policy(int stage) {
  return {.shard_state = stage >= 1, .shard_grads = stage >= 2, .shard_params = stage >= 3};
}

// A rank's place in a job. Neighbouring ranks form shard groups; each group holds one copy (a
// replica) of everything that is sharded.
struct RankPlace {
  int world_size = 1;
  int rank = 0;
  int shard_ranks = 1;      // ranks of a shard group
  int secondary_ranks = 0;  // ranks of an hpZ (secondary) partition of parameters; 0: there is none
  int host_ranks = 1;       // ranks of a host, over which quantized gradients are added first

  int shard_rank() const { return rank % shard_ranks; }
  int replica() const { return rank / shard_ranks; }
  int replicas() const { return world_size / shard_ranks; }
  bool has_secondary() const { return secondary_ranks > 0; }
  // This rank's index within its hpZ partition.
  int secondary_rank() const { return shard_rank() % secondary_ranks; }
};

// The dtypes in which an engine computes and communicates, and the factor before a sum.
struct Precision {
  DType param_dtype = DType::fp32;
  DType comm_dtype = DType::fp32;     // of gradients in the reduction
  DType partial_dtype = DType::fp32;  // of a shard group's sums that are added over replicas
  DType accum_dtype = DType::fp32;    // of reduced gradients
  double pre_scale = 1.0;             // factor of each rank's gradient before the sum
  bool master_is_param = false;

  // True if there are fp32 masters in addition to 16-bit parameters.
  bool separate_master() const { return param_dtype != DType::fp32 && !master_is_param; }
  DType master_dtype() const { return separate_master() ? DType::fp32 : param_dtype; }
};

// Everything that follows from configuration, model, world size and rank and determines the sizes
// of the engine's memory. Computed before any memory is allocated.
struct Sharding {
  std::span<const ParameterSpec> specs;
  StagePolicy policy;
  ZeroConfig zero;
  OffloadConfig offload;
  RankPlace place{};
  // This rank's places among the ranks that hold a parameter that not all ranks hold (experts), by
  // ParameterSpec::ranks - 1.
  std::vector<RankPlace> parts{};
  Precision precision{};
  int64_t accumulation_steps = 1;
  bool share_parameters = true;
  int64_t parameter_alignment = 1;  // minimum alignment of parameters within a bucket, elements
  bool computes_on_host = true;     // true on CPU ranks

  const ParameterSpec& spec(ParameterId id) const { return specs[static_cast<size_t>(id)]; }
  // `ranks`: see ParameterSpec::ranks.
  const RankPlace& place_of(int ranks) const {
    return ranks == 0 ? place : parts.at(static_cast<size_t>(ranks) - 1);
  }
  // True if a part of the optimizer states and reduced gradients is stored on the host.
  bool offloads_states() const {
    return offload.optimizer.device != OffloadDevice::none && offload.optimizer.ratio > 0;
  }
  // True if a step updates the last bucket first. Buckets below stage 3 begin with the last
  // parameters of the model, but the next forward needs the first ones. So the order is reversed at
  // stages 1 and 2, unless states are offloaded: the host's cores begin when the first gradients
  // are there.
  bool updates_last_first() const {
    return policy.shard_state && !policy.shard_params && !offloads_states();
  }
  // True if parameter shards are stored off the device and copied to it when they are gathered. CPU
  // ranks with offload_param "cpu" gather from host memory in place.
  bool moves_parameters() const {
    return policy.shard_params &&
           (offload.param.device == OffloadDevice::nvme ||
            (offload.param.device == OffloadDevice::cpu && !computes_on_host));
  }
};

// True if the reduced gradient overwrites the gradient that it is computed from: below stage 2,
// with one micro-step and one dtype.
bool reduces_in_place(const Sharding& sharding);

// The number of ranks that share one copy. Throws ConfigError.
int shard_ranks_of(const ZeroConfig& zero, int world_size);

// `zero` with another stage, without the settings that this stage does not support.
ZeroConfig at_stage(ZeroConfig zero, int stage);

// Throws ConfigError for dtypes, stages, groups and offload settings that contradict each other.
// The size of shard groups has to be a number; see resolve_groups.
Sharding make_sharding(const Config& config, std::span<const ParameterSpec> specs,
                       const Optimizer& rule, int world_size, int rank, bool computes_on_host);

// Settings of ZeRO++ (Wang et al. 2023, arXiv 2306.10209) that reduce traffic between hosts: an
// hpZ (secondary) partition of parameters within a host, and quantized communication. They save
// nothing if all ranks that share a copy of the model are on one host.

// The keys of these settings that `zero` turns on.
std::vector<std::string_view> zeropp_keys(const ZeroConfig& zero);

// Replaces "auto" group sizes in `zero` by numbers. `ranks_per_host`: neighbouring ranks that share
// a host. Turns off settings that save nothing there and returns their keys.
std::vector<std::string_view> resolve_groups(ZeroConfig& zero, int world_size, int ranks_per_host);

// Throws ConfigError if `groups` is above 1: quantized gradients are not supported with several
// shard groups. `ranks`: ranks of a group, for the text.
void check_quantized_groups(int64_t groups, int64_t ranks);

// Turns on overlap_comm if ranks span hosts and the configuration does not set it. Collectives
// between hosts mostly wait for the link and leave the cores to computation, also on CPU ranks.
void overlap_between_hosts(ZeroConfig& zero, int world_size, int ranks_per_host);

// `zero` without these settings.
ZeroConfig without_zeropp(ZeroConfig zero);

}  // namespace zerorun
