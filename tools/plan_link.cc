#include "tools/plan_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "tools/byte_size.h"
#include "zero/quantized_gather.h"
#include "zero/quantized_reduction.h"
#include "zero/sharded_model.h"

namespace zerorun {

namespace {

// The elements of all buckets, by how they travel.
struct Numels {
  int64_t reduced = 0;
  int64_t sharded = 0;     // gathered before use, as they are
  int64_t quantized = 0;   // the same in fewer bits
  int64_t replicated = 0;  // gathered after a step
};

Numels count(const Sharding& sharding, std::span<const Bucket> buckets) {
  Numels numels;
  for (const Bucket& bucket : buckets) {
    const int64_t numel = bucket.layout.padded_numel();
    if (bucket.plan.trainable) numels.reduced += numel;
    if (QuantizedGather::takes(sharding, bucket)) {
      numels.quantized += numel;
    } else if (bucket.plan.shard_params) {
      numels.sharded += numel;
    } else if (bucket.plan.trainable) {
      numels.replicated += numel;
    }
  }
  return numels;
}

// How often a step gathers a parameter of stage 3: before forward and before backward, or once
// where all of them may stay until the next step.
int64_t gathers_of(const Sharding& sharding, int64_t numel) {
  const ZeroConfig& zero = sharding.zero;
  const bool stay = numel <= zero.max_live_parameters && 2 * numel <= zero.max_reuse_distance;
  return stay ? 1 : 2 * sharding.accumulation_steps;
}

int64_t bytes_of(int64_t numel, int64_t times, size_t nbytes, double part) {
  return static_cast<int64_t>(part * static_cast<double>(numel) * static_cast<double>(times) *
                              static_cast<double>(nbytes));
}

}  // namespace

LinkTraffic plan_link(const Config& config, std::span<const ParameterSpec> specs,
                      const HostLayout& layout) {
  if (layout.hosts() == 1) return {};
  const ShardedModel model(config, specs, layout.world_size, layout.cpu);
  const Sharding& sharding = model.sharding;
  const Numels numels = count(sharding, model.buckets);

  // A host keeps the slices of its own ranks, a ring's last rank what it sums.
  const auto sent = [](int peers) { return (peers - 1.0) / peers; };
  const auto hosts_of = [&](int ranks) {
    return (ranks + layout.ranks_per_host - 1) / layout.ranks_per_host;
  };
  const auto part_of = [&](int ranks) {
    return sent(layout.cpu ? hosts_of(ranks) : hosts_of(ranks) > 1 ? ranks : 1);
  };
  const int hosts_of_group = hosts_of(sharding.shard_ranks);
  const double part = part_of(sharding.shard_ranks);
  const double near = part_of(std::max(1, sharding.secondary_ranks));
  const bool bound = config.precision.communication_dtype.has_value();
  const size_t sum = layout.cpu && layout.ranks_per_host > 1 && !bound
                         ? size_of(DType::fp32)
                         : size_of(sharding.comm_dtype);
  const size_t result =
      layout.cpu && !bound ? size_of(sharding.accum_dtype) : size_of(sharding.comm_dtype);
  const bool whole = !sharding.policy.shard_state;  // an all_reduce
  const int64_t times = sharding.accumulation_steps;
  const size_t param = size_of(sharding.param_dtype);
  LinkTraffic traffic;
  traffic.gradients = bytes_of(numels.reduced, times, whole ? sum + result : sum, part);
  if (sharding.zero.quantized_gradients) {  // sums of hosts
    traffic.gradients = bytes_of(quantized_nbytes(numels.reduced, QuantizedReduction::kBitsAcross),
                                 times, 1, sent(hosts_of_group));
  }
  if (sharding.replicas() > 1) {
    // Each host has a part of the group's shards, which it sends to the other replicas.
    const int copies = layout.cpu ? layout.hosts() / hosts_of_group : sharding.replicas();
    traffic.gradients += bytes_of(numels.reduced / hosts_of_group, times,
                                  2 * size_of(sharding.partial_dtype), sent(copies));
  }
  const int64_t gathered = numels.sharded + numels.quantized;
  const int64_t gathers = gathers_of(sharding, gathered);
  const int64_t far = sharding.has_second_copy() ? 1 : gathers;
  const int64_t quantized = quantized_nbytes(numels.quantized, QuantizedGather::kBits);
  traffic.parameters = bytes_of(numels.sharded, far, param, part) +
                       bytes_of(quantized, far, 1, part) +
                       bytes_of(gathered, gathers - far, param, near) +
                       (whole ? 0 : bytes_of(numels.replicated, 1, param, part));
  return traffic;
}

std::string link_table(const Config& config, std::span<const ParameterSpec> specs,
                       const HostLayout& layout) {
  if (layout.hosts() == 1) return {};
  std::string text =
      fmt::format("\n{:<42}{:>13}{:>13}{:>13}\n", "over a host's link in a step, each way",
                  "gradients", "parameters", "sum");
  for (int stage = 0; stage <= 3; ++stage) {
    Config staged = config;
    staged.zero = at_stage(config.zero, stage);
    staged.offload = {};
    const LinkTraffic traffic = plan_link(staged, specs, layout);
    text += fmt::format("{:<42}{:>13}{:>13}{:>13}\n", fmt::format("stage {}", stage),
                        text_of(traffic.gradients), text_of(traffic.parameters),
                        text_of(traffic.gradients + traffic.parameters));
  }
  return text;
}

}  // namespace zerorun
