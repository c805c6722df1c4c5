#include "tools/plan_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "tools/byte_size.h"
#include "zero/bucket.h"
#include "zero/model_spec.h"
#include "zero/sharding.h"

namespace zerorun {

namespace {

// What becomes of the elements of all buckets.
struct Numels {
  int64_t reduced = 0;
  int64_t sharded = 0;     // gathered before use
  int64_t replicated = 0;  // gathered after a step
};

Numels count(std::span<const Bucket> buckets) {
  Numels numels;
  for (const Bucket& bucket : buckets) {
    const int64_t numel = bucket.layout.padded_numel();
    if (bucket.plan.trainable) numels.reduced += numel;
    if (bucket.plan.shard_params) {
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
  size_t groups = 1;
  for (const ParameterSpec& spec : specs) {
    groups = std::max(groups, static_cast<size_t>(spec.group) + 1);
  }
  const std::vector<Optimizer> rules = make_optimizers(config.optimizer, config.precision);
  const ModelSpec model(with_rules({specs.begin(), specs.end()}, rules.size() > 1), groups);
  const Sharding sharding =
      make_sharding(config, model.specs(), rules.front(), layout.world_size, 0, layout.cpu);
  const Numels numels = count(make_buckets(sharding, model.numels(), model.modules()));

  // A host keeps the slices of its own ranks, a ring's last rank what it sums.
  const double peers = layout.cpu ? layout.hosts() : layout.world_size;
  const double part = (peers - 1) / peers;
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
  traffic.parameters = bytes_of(numels.sharded, gathers_of(sharding, numels.sharded), param, part) +
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
    Config at_stage = config;
    at_stage.zero.stage = stage;
    at_stage.offload = {};
    const LinkTraffic traffic = plan_link(at_stage, specs, layout);
    text += fmt::format("{:<42}{:>13}{:>13}{:>13}\n", fmt::format("stage {}", stage),
                        text_of(traffic.gradients), text_of(traffic.parameters),
                        text_of(traffic.gradients + traffic.parameters));
  }
  return text;
}

}  // namespace zerorun
