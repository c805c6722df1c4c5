#pragma once

#include <span>
#include <vector>

#include "optim/optimizer.h"
#include "zero/partition/bucket.h"
#include "zero/partition/model_spec.h"
#include "zero/partition/sharding.h"

namespace zerorun {

// How an engine on rank 0 would shard a model, without allocating memory or communicating.
struct ShardedModel {
  // Throws ConfigError where Engine::create would.
  ShardedModel(const Config& config, std::span<const ParameterSpec> parameters, int world_size,
               bool computes_on_host);
  ShardedModel(const ShardedModel&) = delete;  // `sharding` refers to `model`
  ShardedModel& operator=(const ShardedModel&) = delete;

  const std::vector<Optimizer> rules;
  const ModelSpec model;
  const Sharding sharding;
  const std::vector<Bucket> buckets;
  const bool
      bounds_link;  // communication_data_type is also what crosses between hosts of CPU ranks
};

}  // namespace zerorun
