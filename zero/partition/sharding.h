#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "optim/optimizer.h"
#include "zero/partition/stage.h"
#include "zerorun/config.h"
#include "zerorun/engine.h"

namespace zerorun {

// As errors name it, which may be of either key.
inline constexpr std::string_view kShardGroupKey =
    "/zerorun/shard_group_size (/zero_optimization/mics_shard_size)";
inline constexpr std::string_view kSecondaryKey = "/zero_optimization/zero_hpz_partition_size";

// A rank's place in a job. Neighbours form shard groups, each of which holds one copy of all that
// is sharded: a replica.
struct RankPlace {
  int world_size = 1;
  int rank = 0;
  int shard_ranks = 1;      // of a group
  int secondary_ranks = 0;  // of a group that has a second copy of its parameters; 0: none has
  int host_ranks = 1;       // neighbours on a host, where quantized gradients travel in hops

  int shard_rank() const { return rank % shard_ranks; }
  int replica() const { return rank / shard_ranks; }
  int replicas() const { return world_size / shard_ranks; }
  bool has_second_copy() const { return secondary_ranks > 0; }
  // This rank's number among those that share its second copy.
  int secondary_rank() const { return shard_rank() % secondary_ranks; }
};

// The facts that follow from configuration, model, world size and rank and say how large the
// engine's memory is, before there is any.
struct Sharding : RankPlace {
  std::span<const ParameterSpec> specs;
  StagePolicy policy;
  ZeroConfig zero;
  OffloadConfig offload;
  DType param_dtype = DType::fp32;
  DType comm_dtype = DType::fp32;     // of gradients on their way
  DType partial_dtype = DType::fp32;  // of a shard group's sums, on their way to other replicas
  DType accum_dtype = DType::fp32;    // of reduced gradients
  double pre_scale = 1.0;             // what each rank multiplies its gradient with before the sum
  int64_t accumulation_steps = 1;
  bool share_parameters = true;
  bool master_is_param = false;
  int64_t parameter_alignment = 1;  // of parameters within their bucket, at least
  bool computes_on_host = true;     // on CPU ranks
  // This rank's places among those that share a parameter: ParameterSpec::ranks counts from 1 here.
  std::vector<RankPlace> parts{};

  const RankPlace& place(int ranks) const {
    return ranks == 0 ? *this : parts.at(static_cast<size_t>(ranks) - 1);
  }

  // fp32 masters beside parameters of 16 bits.
  bool separate_master() const { return param_dtype != DType::fp32 && !master_is_param; }
  // A part of the states and of the reduced gradients is stored on the host.
  bool offloads_states() const {
    return offload.optimizer.device != OffloadDevice::none && offload.optimizer.ratio > 0;
  }
  // Shards of parameters are stored off the device and copied to it when they are gathered. CPU
  // ranks gather from their host's memory in place.
  bool moves_parameters() const {
    return policy.shard_params &&
           (offload.param.device == OffloadDevice::nvme ||
            (offload.param.device == OffloadDevice::cpu && !computes_on_host));
  }
  DType master_dtype() const { return separate_master() ? DType::fp32 : param_dtype; }
};

// True when the reduced gradient replaces the gradient that it was made from: below stage 2, with
// one micro-step and one dtype.
bool reduces_in_place(const Sharding& sharding);

// The ranks that share one copy. Throws ConfigError.
int shard_ranks_of(const ZeroConfig& zero, int world_size);

// The same at another stage, without what that one cannot have.
ZeroConfig at_stage(ZeroConfig zero, int stage);

// Throws ConfigError for dtypes, stages, groups and places to offload to that contradict each
// other. The size of shard groups is a number by now.
Sharding make_sharding(const Config& config, std::span<const ParameterSpec> specs,
                       const Optimizer& rule, int world_size, int rank, bool computes_on_host);

}  // namespace zerorun
